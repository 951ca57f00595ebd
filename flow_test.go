package pinboard

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// inFlow runs f with a flow of a client that leaves when told to.
func inFlow(t *testing.T, f func(t *testing.T, open *flow, leave func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, leave := context.WithCancel(context.WithValue(t.Context(), backendKey{}, "of the client"))
		defer leave()
		s := &lease{}
		l := newLeases(nil, nil, time.Second)
		open := l.opened(client, s)
		defer open.close()
		f(t, open, leave)
	})
}

var errPlantedEnd = errors.New("planted end")

func TestAFlowIsAContext(t *testing.T) {
	t.Parallel()
	inFlow(t, func(t *testing.T, open *flow, _ func()) {
		require.NoError(t, open.Err())
		require.NoError(t, open.cause())
		require.Equal(t, "of the client", open.Value(backendKey{}))
		below, cancel := context.WithTimeout(open, time.Hour)
		defer cancel()
		open.cancel(errPlantedEnd)
		open.cancel(errors.New("too late"))
		<-open.Done()
		<-below.Done()
		require.Equal(t, context.Canceled, open.Err())
		require.Equal(t, errPlantedEnd, open.cause())
		require.Equal(t, context.Canceled, below.Err())
	})
}

func TestAFlowEndsWithItsClient(t *testing.T) {
	t.Parallel()
	inFlow(t, func(t *testing.T, open *flow, leave func()) {
		called := 0
		open.AfterFunc(func() { called++ })
		leave()
		synctest.Wait()
		require.Zero(t, called, "nobody follows the client yet")
		require.Equal(t, context.Canceled, open.Err(), "at once")
		require.Equal(t, context.Canceled, open.cause())
		<-open.Done()
		synctest.Wait()
		require.Equal(t, 1, called)
	})
}

func TestAFlowCallsEachThatAskedAndHasNotTakenItBack(t *testing.T) {
	t.Parallel()
	inFlow(t, func(t *testing.T, open *flow, _ func()) {
		called := make([]int, 6)
		stops := make([]func() bool, len(called))
		for i := range called {
			stops[i] = open.AfterFunc(func() { called[i]++ })
		}
		for _, i := range []int{1, 4} {
			require.True(t, stops[i]())
			require.False(t, stops[i](), "it was taken back before")
		}
		open.cancel(errPlantedEnd)
		synctest.Wait()
		require.Equal(t, []int{1, 0, 1, 1, 0, 1}, called)
		for _, stop := range stops {
			require.False(t, stop())
		}
		late := 0
		stop := open.AfterFunc(func() { late++ })
		synctest.Wait()
		require.Equal(t, 1, late)
		require.False(t, stop())
	})
}

func TestAClosedFlowCallsNobody(t *testing.T) {
	t.Parallel()
	inFlow(t, func(t *testing.T, open *flow, leave func()) {
		open.AfterFunc(func() { require.Fail(t, "it is over") })
		open.close()
		open.close()
		leave()
		synctest.Wait()
		<-open.Done()
		require.Zero(t, open.lease.flows)
	})
}

// What a dialer of the host's has made of a flow may end at the same time.
func TestAFlowMayCloseWhileSomethingIsTakenBack(t *testing.T) {
	t.Parallel()
	l := newLeases(nil, nil, time.Second)
	s := &lease{}
	for range 10_000 {
		f := l.opened(t.Context(), s)
		f.AfterFunc(func() { t.Error("it is over") })
		f.AfterFunc(func() { t.Error("it is over") })
		stop := f.AfterFunc(func() { t.Error("it is over") })
		var both sync.WaitGroup
		both.Go(func() { stop() })
		both.Go(f.follow)
		f.close()
		both.Wait()
	}
}

func TestFlowsAreForgottenInAnyOrder(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}} {
		var l flows
		all := make([]flow, 3)
		for i := range all {
			l.add(&all[i])
		}
		for n, i := range order {
			for range 2 { // the second time does nothing
				l.remove(&all[i])
			}
			require.Equal(t, len(order)-n-1, l.count)
			require.Len(t, slices.Collect(l.all()), l.count)
			require.NotContains(t, slices.Collect(l.all()), &all[i])
		}
		require.Zero(t, l)
	}
}

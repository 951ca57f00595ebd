package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestNothingPrintsASecret(t *testing.T) {
	t.Parallel()
	o := complete()
	o.Token = "planted-hunter2-0123"
	w, err := New(o)
	require.NoError(t, err)
	require.Empty(t, string(w.opts.Token), "it is kept in one place")
	secrets := []string{"planted-hunter2-0123", w.reg.secret.Reveal()}
	text, err := json.Marshal(map[string]any{"token": o.Token})
	require.NoError(t, err)
	var printed strings.Builder
	printed.WriteString(string(text))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		printed.WriteString(fmt.Sprintf(verb, o) + fmt.Sprintf(verb, &o) + fmt.Sprintf(verb, o.Token) + fmt.Sprintf(verb, w))
		printed.WriteString(fmt.Sprintf(verb, w.opts) + fmt.Sprintf(verb, *w.reg.client))
	}
	for _, s := range secrets {
		require.NotContains(t, printed.String(), s)
		require.NotContains(t, printed.String(), fmt.Sprintf("%x", s))
	}
	require.Equal(t, "worker at http://worker/base", fmt.Sprint(w))
}

// HTTP_PROXY must not see what is said to pinboard.
func TestTheDefaultTransportUsesNoProxy(t *testing.T) {
	t.Parallel()
	w, err := New(complete())
	require.NoError(t, err)
	require.Nil(t, w.reg.client.owned.Proxy)
	require.Same(t, w.reg.client.owned, w.reg.client.http.Transport)
}

func TestStartAndShutdownInAnyOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, nil)
		require.ErrorContains(t, h.w.Start(), "no namespace")
		require.NoError(t, h.w.Host("/c", echo))
		h.start()
		h.start() // a second Start does nothing
		require.Len(t, h.pb.to(wire.PathRegister), 1)
		h.stop()
		h.stop()
		require.Len(t, h.pb.to(wire.PathDeregister), 1)
		require.ErrorIs(t, h.w.Start(), ErrClosed)

		never := newHarness(t, Options{}, hosting(echo))
		never.stop()
		require.Empty(t, never.pb.calls)
		require.ErrorIs(t, never.w.Start(), ErrClosed)
	})
}

func TestShutdownReleasesEverythingThenDeregisters(t *testing.T) {
	t.Parallel()
	var events record
	host := func(inst *Instance) (http.Handler, error) {
		inst.OnClose(func(context.Context) error {
			<-time.After(7 * time.Second)
			events.add("hook %s", inst.ID())
			return nil
		})
		return echo(inst)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.get("/c/2")
		h.pb.on(func(c call) (reply, bool) {
			switch c.path {
			case wire.PathRelease:
				for _, item := range c.list(t) {
					events.add("release %s", item["id"])
				}
			case wire.PathDeregister:
				events.add("deregister %s", c.body["sessionId"])
			}
			return reply{}, false
		})
		var all sync.WaitGroup
		for range 3 { // at the same time, too
			all.Go(func() { require.NoError(t, h.w.Shutdown(t.Context())) })
		}
		h.after(time.Second)
		refused(t, h.get("/c/new"), wire.RefusalDraining)
		all.Wait()
		got := events.all()
		require.Len(t, got, 5)
		require.ElementsMatch(t, []string{"hook 1", "hook 2", "release 1", "release 2"}, got[:4])
		require.Equal(t, "deregister session-1", got[4])
		require.Len(t, h.pb.to(wire.PathHeartbeat), 2, "heartbeats go on while instances close")
		before := len(h.pb.calls)
		h.after(time.Hour)
		require.Len(t, h.pb.calls, before)
		require.False(t, h.w.Ready())
		refused(t, h.get("/c/1"), wire.RefusalExpired)
	})
}

func TestShutdownWithoutPinboardTakesItsAttemptsAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(echo))
		h.start()
		h.get("/c/1")
		h.pb.on(func(call) (reply, bool) { return reply{status: 503}, true })
		for attempts := 3; attempts <= 6; attempts += 3 { // and again
			err := h.w.Shutdown(t.Context())
			require.ErrorIs(t, err, ErrNotDeregistered)
			require.ErrorContains(t, err, "status 503")
			require.ErrorContains(t, err, h.w.reg.clientID)
			require.ErrorContains(t, err, h.w.opts.AdvertiseURL)
			require.NotContains(t, err.Error(), "session-1")
			require.Len(t, h.pb.to(wire.PathDeregister), attempts)
		}
		require.False(t, h.live("/c", "1"))
		require.ErrorIs(t, h.w.Start(), ErrClosed)

		h.pb.on(nil)
		require.NoError(t, h.w.Shutdown(t.Context()), "it goes on where it was")
		require.NoError(t, h.w.Shutdown(t.Context()))
		require.Len(t, h.pb.to(wire.PathDeregister), 7)
	})
}

func TestADeregistrationThatIsNotAnsweredHoldsShutdownNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(echo))
		h.start()
		h.pb.answer(wire.PathDeregister, reply{delay: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := h.since()
		err := h.w.Shutdown(ctx)
		require.ErrorIs(t, err, ErrNotDeregistered)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 2*time.Second, h.since()-began)
	})
}

func TestShutdownDuringARegistrationDoesNotWaitForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(echo))
		h.pb.answer(wire.PathRegister, reply{status: 200, delay: time.Hour})
		h.start()
		began := h.since()
		require.NoError(t, h.w.Shutdown(t.Context()))
		require.Equal(t, began, h.since())
	})
}

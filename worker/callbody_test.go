package worker

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// expire has the worker's view of its lease end, while instances stay: what
// seemed to live here refuses.
func (c *cluster) expire() {
	c.wallStep.Store(int64(time.Hour))
}

func TestACallThatIsRefusedHereGoesToPinboard(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]func() io.Reader{
		"without a body":         func() io.Reader { return http.NoBody },
		"with one to get again":  func() io.Reader { return strings.NewReader("hello") },
		"with one that is short": func() io.Reader { return io.MultiReader(strings.NewReader("hello")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
				a := c.open("a")
				c.open("b")
				c.expire()
				want, err := io.ReadAll(body())
				require.NoError(t, err)
				source := &closedBody{Reader: body()}
				req, err := http.NewRequest(http.MethodPost, "/c/b/x?q", source.Reader)
				require.NoError(t, err)
				if req.GetBody == nil {
					req.Body = source
				}
				res, err := a.Client().Do(req)
				require.Equal(t, "elsewhere", read(t, res, err))
				require.Equal(t, []string{string(want)}, c.bodies)
				require.Len(t, c.seen(), 1)
				require.Equal(t, "/c/b/x?q", c.seen()[0].RequestURI)
				require.Empty(t, c.seen()[0].Header.Get(wire.HeaderEpoch))
				require.Equal(t, req.Body == source, source.closed)
			})
		})
	}
}

// What the application has not yet written when the call is refused is there for
// the second attempt, and the refusal does not wait for it.
func TestABodyThatIsStillWrittenFollowsToPinboard(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		c.open("b")
		c.expire()
		r, w := io.Pipe()
		req, err := http.NewRequest(http.MethodPost, "/c/b", r)
		require.NoError(t, err)
		answered := make(chan string, 1)
		go func() {
			res, err := a.Client().Do(req)
			answered <- read(t, res, err)
		}()
		_, err = io.WriteString(w, "first, ")
		require.NoError(t, err)
		synctest.Wait()
		require.Len(t, c.seen(), 1)
		_, err = io.WriteString(w, "second")
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.Equal(t, "elsewhere", <-answered)
		require.Equal(t, []string{"first, second"}, c.bodies)
		synctest.Wait()
		_, err = w.Write([]byte("x"))
		require.Error(t, err, "the source was closed")
	})
}

// What the instance has not asked for is not read beyond what is kept.
func TestALongBodyFollowsToPinboardAsWell(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		c.beginGet("/c/slow")
		long := strings.Repeat("long", 1<<18)
		source := &closedBody{Reader: strings.NewReader(long)}
		req, err := http.NewRequest(http.MethodPost, "/c/slow", source)
		require.NoError(t, err)
		go func() { // once as much is under way as there is room for
			synctest.Wait()
			c.w.dir.abort(key{"/c", "slow"}, errOwnAbort)
		}()
		res, err := a.Client().Do(req)
		require.Equal(t, "elsewhere", read(t, res, err))
		require.True(t, c.bodies[0] == long)
		synctest.Wait()
		require.True(t, source.closed)
	})
}

func TestABodyOfWhichMoreWasSentThanIsKeptIsNotSentAgain(t *testing.T) {
	t.Parallel()
	source := &closedBody{Reader: bytes.NewReader(make([]byte, maxKeptBody+1))}
	req, err := http.NewRequest(http.MethodPost, "/c/1", source)
	require.NoError(t, err)
	body := newCallBody(req, true)
	first, err := body.open()
	require.NoError(t, err)
	_, err = io.ReadFull(first, make([]byte, maxKeptBody+1))
	require.NoError(t, err)
	require.False(t, body.again())
	require.NoError(t, first.Close())
	require.False(t, source.closed, "it may be opened again, for all the reader knows")
	body.last()
	require.True(t, source.closed)
}

func TestALongBodyArrivesWhole(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		source := &closedBody{Reader: strings.NewReader(strings.Repeat("x", 1<<20))}
		req, err := http.NewRequest(http.MethodPost, "/c/a", source)
		require.NoError(t, err)
		res, err := a.Client().Do(req)
		require.Contains(t, read(t, res, err), strings.Repeat("x", 1<<20))
		synctest.Wait()
		require.True(t, source.closed)
	})
}

// An instance may answer what looks like a refusal. It has seen the call.
func TestAnInstancesOwn503IsNotARefusal(t *testing.T) {
	t.Parallel()
	inCluster(t, func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			w.Header().Set(wire.HeaderRefusal, wire.RefusalClosing)
			w.Header().Set(headerUnseen, "guessed")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		res, err := a.Client().Get("/c/a/busy")
		require.Empty(t, read(t, res, err))
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
		require.Empty(t, res.Header.Get(wire.HeaderRefusal))
		require.Empty(t, c.seen())
	})
}

func TestACallToAClosingInstanceGoesToPinboard(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		a, b := c.open("a"), c.open("b")
		finish := make(chan struct{})
		b.Go(func(context.Context) { <-finish })
		b.Abort()
		began := c.since()
		res, err := a.Client().Get("/c/b")
		require.Equal(t, "elsewhere", read(t, res, err))
		require.Zero(t, c.since()-began, "and does not ask it first")
		close(finish)
	})
}

// The second attempt has an end of its own: nothing goes round in a circle.
func TestWhatPinboardAnswersToARefusedCallIsTheAnswer(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusServiceUnavailable)
	}, func(t *testing.T, c *cluster) {
		a := c.open("a")
		c.open("b")
		c.expire()
		res, err := a.Client().Get("/c/b")
		read(t, res, err)
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
		require.Equal(t, "2", res.Header.Get("Retry-After"))
		require.Len(t, c.seen(), 1)
	})
}

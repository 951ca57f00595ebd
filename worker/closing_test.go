package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// record keeps what happened, in order.
type record struct {
	mu     sync.Mutex
	events []string
}

func (r *record) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// noteReleases records when a release is sent and, delay later, answered.
func (h *harness) noteReleases(r *record, delay time.Duration) {
	h.pb.on(func(c call) (reply, bool) {
		if c.path != wire.PathRelease {
			return reply{}, false
		}
		r.add("release sent")
		<-time.After(delay)
		r.add("release answered")
		return reply{status: http.StatusOK, body: object{"released": 1}}, true
	})
}

// busy is a constructor whose instances note all that happens to them:
// a task, a plain request at /plain, a stream at /stream, and a close hook.
func busy(events *record, made *[]*Instance) Constructor {
	return func(inst *Instance) (http.Handler, error) {
		*made = append(*made, inst)
		inst.OnClose(func(ctx context.Context) error {
			deadline, _ := ctx.Deadline()
			events.add("hook, %v left, ctx %v", time.Until(deadline), ctx.Err())
			return nil
		})
		inst.Go(func(ctx context.Context) { <-ctx.Done(); events.add("task ended") })
		mux := http.NewServeMux()
		mux.HandleFunc("/plain", func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			events.add("plain ended: %v", context.Cause(r.Context()))
		})
		mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			events.add("stream ended: %v", context.Cause(r.Context()))
		})
		// A handler that ends its stream by itself as soon as it can.
		mux.HandleFunc("/hasty", func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			<-inst.Context().Done()
			events.add("hasty stream returned")
		})
		return mux, nil
	}
}

func TestAnInstanceClosesInOrder(t *testing.T) {
	t.Parallel()
	var events record
	var made []*Instance
	inBubble(t, Options{}, hosting(busy(&events, &made)), func(t *testing.T, h *harness) {
		h.start()
		client := h.network()
		h.noteReleases(&events, 2*time.Second)
		var readers sync.WaitGroup
		for _, name := range []string{"stream", "hasty"} {
			res, err := client.Do(h.outgoing(t.Context(), "/c/1/"+name))
			require.NoError(t, err)
			readers.Go(func() {
				defer res.Body.Close()
				_, err := io.Copy(io.Discard, res.Body)
				events.add("client saw its end: %v", err)
			})
		}
		plain := h.beginGet("/c/1/plain")
		synctest.Wait()
		require.Equal(t, 2, h.w.Stats().Instances[0].Connections)
		require.Equal(t, 2, h.w.Stats().Instances[0].Tasks)
		made[0].Abort()
		synctest.Wait()
		require.True(t, plain.ended(), "plain requests are not kept")
		require.Equal(t, http.StatusServiceUnavailable, plain.rec.Code)
		require.Equal(t, "instance aborted", detail(t, plain.rec))
		require.Empty(t, plain.rec.Header().Get(wire.HeaderRefusal), "the instance saw it")
		arrives := h.begin(h.request(http.MethodGet, "/c/1/plain"))
		h.after(900 * time.Millisecond)
		require.False(t, arrives.ended())
		h.after(100 * time.Millisecond)
		refused(t, arrives.rec, wire.RefusalClosing)
		h.after(time.Second)
		readers.Wait()
		got := events.all()
		require.Len(t, got, 9)
		// A stream's handler may return when it likes; nothing waits for it.
		hasty := slices.Index(got, "hasty stream returned")
		require.Contains(t, []int{0, 1, 2, 3, 4}, hasty, "only the stream's end is held back")
		got = slices.Delete(got, hasty, hasty+1)
		require.ElementsMatch(t, []string{"task ended", "plain ended: worker: instance aborted: by itself"}, got[:2])
		require.Equal(t, []string{"hook, 10s left, ctx <nil>", "release sent", "release answered"}, got[2:5])
		require.ElementsMatch(t, []string{
			"stream ended: worker: instance aborted: by itself", "client saw its end: <nil>", "client saw its end: <nil>",
		}, got[5:])
		require.False(t, h.live("/c", "1"))
		require.ErrorIs(t, context.Cause(made[0].Context()), ErrAborted)
		require.False(t, made[0].Go(untilDone), "nothing starts any more")
		require.False(t, made[0].OnClose(func(context.Context) error { return nil }))
	})
}

// Pinboard must find the id free when it looks again.
func TestARequestAtAClosingInstanceWaitsForItsRelease(t *testing.T) {
	t.Parallel()
	var events record
	var made []*Instance
	inBubble(t, Options{}, hosting(busy(&events, &made)), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.noteReleases(&events, 300*time.Millisecond)
		made[0].Abort()
		p := h.beginGet("/c/1")
		h.after(299 * time.Millisecond)
		require.False(t, p.ended())
		h.after(time.Millisecond)
		require.True(t, p.ended())
		refused(t, p.rec, wire.RefusalClosing)
	})
}

func TestAStreamDoesNotWaitLongForARelease(t *testing.T) {
	t.Parallel()
	var events record
	var made []*Instance
	inBubble(t, Options{}, hosting(busy(&events, &made)), func(t *testing.T, h *harness) {
		h.start()
		stream := h.beginGet("/c/1/stream")
		h.pb.answer(wire.PathRelease, reply{status: 200, delay: time.Hour})
		made[0].Abort()
		h.after(5*time.Second - time.Millisecond)
		require.False(t, stream.ended())
		h.after(time.Millisecond)
		require.True(t, stream.ended())
		require.False(t, h.live("/c", "1"))
		// The release goes on by itself, and later with a heartbeat.
		h.pb.on(nil)
		h.after(30 * time.Second)
		require.Equal(t, "1", h.pb.last(t, wire.PathRelease).list(t)[0]["id"])
		before := len(h.pb.to(wire.PathRelease))
		h.after(30 * time.Second)
		require.Len(t, h.pb.to(wire.PathRelease), before, "until it was answered")
	})
}

// Without an epoch, a late release might free a newer placement of the id.
func TestAReleaseThatFailedIsSentAgainIfItNamesItsPlacement(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/known")
		r := h.request(http.MethodGet, "/c/unknown")
		r.Header.Del(wire.HeaderEpoch)
		h.do(r)
		h.pb.answer(wire.PathRelease, reply{status: 500})
		for _, id := range []string{"known", "unknown"} {
			h.w.dir.abort(key{"/c", id}, errOwnAbort)
			h.after(time.Second)
			require.False(t, h.live("/c", id))
		}
		require.True(t, h.logged("call failed after some attempts; pinboard frees the placements when the lease lapses"))
		before := len(h.pb.to(wire.PathRelease))
		h.pb.on(nil)
		h.after(6 * time.Second)
		require.Len(t, h.pb.to(wire.PathRelease), before+1)
		require.Equal(t, []object{{"sessionId": "session-1", "namespace": "/c", "id": "known", "epoch": "100"}},
			h.pb.last(t, wire.PathRelease).list(t))
	})
}

func TestManyReleasesShareFewCalls(t *testing.T) {
	t.Parallel()
	const n = 2500
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		for i := range n {
			require.Equal(t, http.StatusOK, h.get(fmt.Sprintf("/c/%d", i)).Code)
		}
		h.pb.on(func(c call) (reply, bool) {
			return reply{status: 200, body: object{}, delay: 10 * time.Millisecond}, c.path == wire.PathRelease
		})
		require.NoError(t, h.w.Drain(t.Context(), time.Minute))
		freed := map[any]bool{}
		for _, c := range h.pb.to(wire.PathRelease) {
			require.LessOrEqual(t, len(c.list(t)), releaseBatch)
			for _, item := range c.list(t) {
				freed[item["id"]] = true
			}
		}
		require.Len(t, freed, n)
		require.Less(t, len(h.pb.to(wire.PathRelease)), 10)
	})
}

func TestAStreamThatItsClientHasLeftIsNotKept(t *testing.T) {
	t.Parallel()
	var events record
	var made []*Instance
	inBubble(t, Options{}, hosting(busy(&events, &made)), func(t *testing.T, h *harness) {
		h.start()
		h.noteReleases(&events, 4*time.Second)
		ctx, leave := context.WithCancel(t.Context())
		hasty := h.begin(h.request(http.MethodGet, "/c/1/hasty").WithContext(ctx))
		made[0].Abort()
		synctest.Wait()
		require.False(t, hasty.ended())
		leave()
		synctest.Wait()
		require.True(t, hasty.ended())
	})
}

func TestHooksRunLastInFirstOutAndAllOfThem(t *testing.T) {
	t.Parallel()
	var events record
	host := func(inst *Instance) (http.Handler, error) {
		for _, hook := range []func(context.Context) error{
			func(context.Context) error { events.add("first"); return nil },
			func(context.Context) error { events.add("panics"); panic("mine") },
			func(context.Context) error { events.add("fails"); return errors.New("disk full") },
			func(ctx context.Context) error { <-ctx.Done(); events.add("last, late"); return ctx.Err() },
		} {
			require.True(t, inst.OnClose(hook))
		}
		return echo(inst)
	}
	inBubble(t, Options{CloseTimeout: 3 * time.Second}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
		h.after(2900 * time.Millisecond)
		require.Empty(t, events.all())
		require.Empty(t, h.pb.to(wire.PathRelease), "not before the hooks have returned")
		h.after(200 * time.Millisecond)
		require.Equal(t, []string{"last, late", "fails", "panics", "first"}, events.all())
		require.Len(t, h.pb.to(wire.PathRelease), 1)
		require.False(t, h.live("/c", "1"))
		require.True(t, h.logged("OnClose hooks are late: the id stays until they return"))
		require.Equal(t, 3, h.logs.FilterMessage("OnClose hook failed").Len())
	})
}

// To release an id while something of it still runs would be to have two.
func TestAnInstanceThatIgnoresItsEndKeepsItsID(t *testing.T) {
	t.Parallel()
	var release chan struct{}
	host := func(inst *Instance) (http.Handler, error) {
		inst.Go(func(context.Context) { <-release })
		return echo(inst)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		release = make(chan struct{})
		h.start()
		h.get("/c/1")
		h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
		h.after(time.Minute)
		require.True(t, h.live("/c", "1"))
		require.Empty(t, h.pb.to(wire.PathRelease))
		refused(t, h.get("/c/1"), wire.RefusalClosing)
		require.True(t, h.logged("instance does not end: something of it ignores its context"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, h.w.Shutdown(ctx), context.DeadlineExceeded)
		require.Empty(t, h.pb.to(wire.PathDeregister), "its id is left to the lease")
		require.False(t, h.w.Ready())
		refused(t, h.get("/c/1"), wire.RefusalExpired)
		close(release)
		synctest.Wait()
		require.NoError(t, h.w.Shutdown(t.Context()))
	})
}

// A context does not wake a handler that is stuck in a write to a client that
// does not read.
func TestAHandlerStuckInAWriteIsCutLoose(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/plain", "/stream"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			var stuck chan error
			host := serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/stream" {
					w.(http.Flusher).Flush()
				}
				_, err := w.Write(make([]byte, 1<<20))
				stuck <- err
			})
			inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
				stuck = make(chan error, 1)
				h.start()
				client := h.network()
				res, err := client.Do(h.outgoing(t.Context(), "/c/1"+path))
				require.NoError(t, err)
				defer res.Body.Close()
				h.after(time.Minute)
				h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
				h.after(999 * time.Millisecond)
				require.Empty(t, stuck)
				h.after(time.Millisecond)
				require.Error(t, <-stuck)
				synctest.Wait()
				require.False(t, h.live("/c", "1"))
			})
		})
	}
}

func TestARequestsContextEndsWithItAndSaysWhy(t *testing.T) {
	t.Parallel()
	var got context.Context
	host := serving(func(_ *Instance, _ http.ResponseWriter, r *http.Request) {
		got = r.Context()
		if r.URL.Path == "/wait" {
			<-got.Done()
		}
	})
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		require.ErrorIs(t, got.Err(), context.Canceled)
		ctx, leave := context.WithCancel(t.Context())
		p := h.begin(h.request(http.MethodGet, "/c/1/wait").WithContext(ctx))
		leave()
		synctest.Wait()
		require.True(t, p.ended())
		require.NotErrorIs(t, context.Cause(got), ErrAborted)
		require.Empty(t, p.rec.Body.String(), "its client left: the instance was not aborted")
	})
}

func TestATasksPanicIsContained(t *testing.T) {
	t.Parallel()
	host := func(inst *Instance) (http.Handler, error) {
		inst.Go(func(context.Context) { panic("mine") })
		return echo(inst)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		synctest.Wait()
		require.True(t, h.logged("background task panicked"))
		require.Zero(t, h.w.Stats().Instances[0].Tasks)
	})
}

func TestResponsesAreWhatTheHandlerMakesThem(t *testing.T) {
	t.Parallel()
	host := func(*Instance) (http.Handler, error) {
		mux := http.NewServeMux()
		mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</a.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "tea")
		})
		mux.HandleFunc("/trailer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("X-Sum", "1")
		})
		mux.HandleFunc("/copy", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		mux.HandleFunc("/empty", func(http.ResponseWriter, *http.Request) {})
		return mux, nil
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		client := h.network()
		get := func(path string) (*http.Response, string) {
			res, err := client.Do(h.outgoing(t.Context(), path))
			require.NoError(t, err)
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			return res, string(text)
		}
		res, text := get("/c/1/hints")
		require.Equal(t, http.StatusTeapot, res.StatusCode)
		require.Equal(t, "tea", text)
		require.Empty(t, res.Header.Get("Link"))
		res, text = get("/c/1/trailer")
		require.Equal(t, "body", text)
		require.Equal(t, "1", res.Trailer.Get("X-Sum"))
		res, _ = get("/c/1/empty")
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.EqualValues(t, 0, res.ContentLength)
		_, text = get("/c/1/copy")
		require.Empty(t, text)
	})
}

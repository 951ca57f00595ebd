package worker

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// freezes are the ways in which a process can stand still: how far each of its
// clocks has gone when it goes on, if the lease had left of its time.
var freezes = map[string]func(h *harness, left time.Duration){
	"stopped": func(h *harness, left time.Duration) { h.step(left, left) },
	"suspended with its machine, the monotonic clock too": func(h *harness, left time.Duration) { h.step(0, left) },
	"stopped, and the wall clock set back meanwhile":      func(h *harness, left time.Duration) { h.step(left, -20*time.Second) },
}

func (h *harness) step(mono, wall time.Duration) {
	h.monoStep.Add(int64(mono))
	h.wallStep.Add(int64(wall))
}

// answered is what a client got in the end.
type answered struct {
	status int
	header http.Header
	body   string
	err    error // of the call, or of reading the body
}

func (a answered) whole() bool { return a.err == nil && a.status < 300 }

// ask sends a request over the network; done is closed when it is over.
func ask(client *http.Client, r *http.Request) (got *answered, done chan struct{}) {
	got, done = &answered{}, make(chan struct{})
	go func() {
		defer close(done)
		res, err := client.Do(r)
		if err != nil {
			got.err = err
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		*got = answered{res.StatusCode, res.Header, string(body), err}
	}()
	return got, done
}

const anAnswer = "an answer"

// frozenHandlers are handlers by what they have done when the process freezes,
// each with what its client gets: a 503, or a connection that is cut.
var frozenHandlers = map[string]struct {
	before, after func(w http.ResponseWriter)
	cut           bool
}{
	"/body":   {before: nothing, after: writes},
	"/empty":  {before: nothing, after: nothing},
	"/flush":  {before: nothing, after: func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }},
	"/copy":   {before: nothing, after: func(w http.ResponseWriter) { _, _ = io.Copy(w, strings.NewReader(anAnswer)) }},
	"/hijack": {before: nothing, after: hijacks},
	"/header": {before: func(w http.ResponseWriter) { w.Header().Set("Set-Cookie", "done=1") }, after: func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", "9")
		w.WriteHeader(http.StatusCreated)
		writes(w)
	}},
	"/hints": {before: func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints) }, after: writes},
	// The server holds back what is small until the handler returns.
	"/status":      {before: func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) }, after: writes, cut: true},
	"/status-only": {before: func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }, after: nothing, cut: true},
	"/written":     {before: writes, after: nothing, cut: true},
	"/half":        {before: writes, after: writes, cut: true},
	"/half-copied": {before: writes, after: func(w http.ResponseWriter) { _, _ = io.Copy(w, strings.NewReader(anAnswer)) }, cut: true},
	"/half-sent":   {before: func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 64<<10)) }, after: writes, cut: true},
	"/half-flush":  {before: writes, after: func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }, cut: true},
}

func hijacks(w http.ResponseWriter) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + anAnswer)
	_ = rw.Flush()
	_ = conn.Close()
}

func nothing(http.ResponseWriter) {}
func writes(w http.ResponseWriter) {
	_, _ = w.Write([]byte(anAnswer[:1]))
	_, _ = io.WriteString(w, anAnswer[1:])
}

// A process stands still until its lease is over, with requests in every place
// where one can be. Not one of them is answered. If it goes on just before the
// end, all of them are.
func TestNoRequestIsAnsweredAcrossAFreezePastTheLease(t *testing.T) {
	t.Parallel()
	for name, freeze := range freezes {
		for suffix, early := range map[string]time.Duration{"": 0, ", but just not past the lease": 1} {
			t.Run(name+suffix, func(t *testing.T) {
				t.Parallel()
				frozenMidRequest(t, func(h *harness, left time.Duration) { freeze(h, left-early) }, early > 0)
			})
		}
	}
}

func frozenMidRequest(t *testing.T, freeze func(h *harness, left time.Duration), inTime bool) {
	var thaw chan struct{}
	var seen atomic.Int64 // requests that got to a handler after the freeze
	hosts := map[string]Constructor{
		"/work": serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
			does := frozenHandlers[r.URL.Path]
			does.before(w)
			<-thaw
			does.after(w)
		}),
		"/slow": func(*Instance) (http.Handler, error) {
			<-thaw
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { seen.Add(1); writes(w) }), nil
		},
		"/late": serving(func(_ *Instance, w http.ResponseWriter, _ *http.Request) { seen.Add(1); writes(w) }),
	}
	inBubble(t, Options{MaxConcurrentActivations: 1}, hosts, func(t *testing.T, h *harness) {
		thaw = make(chan struct{})
		h.start()
		h.get("/late/1")
		seen.Store(0)
		client := h.network()
		got := map[string]*answered{}
		var all []chan struct{}
		send := func(name string, r *http.Request) {
			a, done := ask(client, r)
			got[name], all = a, append(all, done)
			synctest.Wait()
		}
		for path := range frozenHandlers {
			send(path, h.outgoing(t.Context(), "/work/1"+path))
		}
		send("constructs", h.outgoing(t.Context(), "/slow/1"))
		send("waits for the constructor", h.outgoing(t.Context(), "/slow/1"))
		h.after(time.Second - time.Millisecond)
		send("queued", h.outgoing(t.Context(), "/slow/2"))
		arriving := h.outgoing(t.Context(), "/late/1")

		freeze(h, 14*time.Second+time.Millisecond)
		send("arrives", arriving)
		close(thaw)
		h.after(time.Second)
		for _, done := range all {
			select {
			case <-done:
			default:
				require.FailNow(t, "a request has no end")
			}
		}
		for name, a := range got {
			require.Equal(t, inTime, a.whole(), "%s: %d %v", name, a.status, a.err)
			if inTime {
				continue
			}
			require.Empty(t, a.header.Get("Set-Cookie"), name)
			if frozenHandlers[name].cut {
				require.Error(t, a.err, "%s: %d %v", name, a.status, a.err)
				continue
			}
			require.Equal(t, http.StatusServiceUnavailable, a.status, "%s: %d %v", name, a.status, a.err)
			require.NotContains(t, a.body, anAnswer, name)
			_, handled := frozenHandlers[name]
			require.Equal(t, handled, a.header.Get(wire.HeaderRefusal) == "", "%s: only what no instance saw may be sent again", name)
			if handled {
				require.NotContains(t, a.body, wire.DetailLeaseExpired, "%s: pinboard may take that for never served", name)
			}
		}
		if inTime {
			return
		}
		require.Zero(t, seen.Load())
		h.after(3 * time.Second) // the next heartbeat
		require.Equal(t, anAnswer, h.get("/late/1").Body.String())
	})
}

// What was granted in answer to a call that was sent before the freeze is over
// too when the answer is read behind it.
func TestAnAnswerThatIsReadBehindAFreezeRenewsNothing(t *testing.T) {
	t.Parallel()
	for name, freeze := range freezes {
		for _, path := range []string{wire.PathRegister, wire.PathHeartbeat} {
			t.Run(path+" "+name, func(t *testing.T) {
				t.Parallel()
				inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
					if path == wire.PathHeartbeat {
						h.start()
						h.get("/c/1")
						h.after(2 * time.Second)
					}
					h.pb.on(func(c call) (reply, bool) {
						out := h.pb.agree(c)
						out.delay = 2 * time.Second
						if c.path == wire.PathHeartbeat && path == wire.PathRegister {
							out = reply{status: http.StatusServiceUnavailable} // or it would renew at once
						}
						return out, c.path == path || c.path == wire.PathHeartbeat
					})
					if path == wire.PathRegister {
						h.start()
					}
					h.after(time.Second) // sent, and not answered
					freeze(h, 15*time.Second)
					h.after(time.Second)
					require.NotEmpty(t, h.w.reg.sessionID())
					require.False(t, h.w.Ready())
					refused(t, h.get("/c/1"), wire.RefusalExpired)
					h.pb.on(nil)
					h.after(3 * time.Second)
					require.True(t, h.w.Ready())
				})
			})
		}
	}
}

// Streams that were open are pinboard's to cut. They end here too when the
// worker learns that their instance lives elsewhere, and meanwhile hold nothing
// up.
func TestOpenStreamsOfALostInstanceEndAfterAFreeze(t *testing.T) {
	t.Parallel()
	for name, freeze := range freezes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var events record
			hijacks := hijacker(&events)
			host := func(inst *Instance) (http.Handler, error) {
				upgrades, err := hijacks(inst)
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/stream" {
						upgrades.ServeHTTP(w, r)
						return
					}
					for r.Context().Err() == nil && http.NewResponseController(w).Flush() == nil {
						pause(r.Context(), time.Second)
						writes(w)
					}
				}), err
			}
			inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
				h.start()
				l := newPipeListener()
				server := &http.Server{Handler: h.w}
				go func() { _ = server.Serve(l) }()
				defer server.Close()
				client := &http.Client{Transport: &http.Transport{DialContext: l.dial, DisableKeepAlives: true}}
				var open sync.WaitGroup
				var ended atomic.Int64
				for _, id := range []string{"kept", "lost"} {
					res, err := client.Do(h.outgoing(t.Context(), "/c/"+id+"/stream"))
					require.NoError(t, err)
					open.Go(func() { defer res.Body.Close(); _, _ = io.Copy(io.Discard, res.Body); ended.Add(1) })
					conn := h.upgraded(l, "/c/"+id+"/waits")
					open.Go(func() { defer conn.Close(); _, _ = io.Copy(io.Discard, bufio.NewReader(conn)); ended.Add(1) })
				}
				freeze(h, 15*time.Second)
				synctest.Wait()
				refused(t, h.get("/c/kept/returns"), wire.RefusalExpired)
				h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusServiceUnavailable})
				h.after(5 * time.Second)
				require.Zero(t, ended.Load())
				h.pb.on(h.losing("lost"))
				h.after(5 * time.Second)
				require.EqualValues(t, 2, ended.Load(), "those of the lost one, and no others")
				require.True(t, h.live("/c", "kept"))
				require.False(t, h.live("/c", "lost"))
				h.w.dir.abort(key{"/c", "kept"}, errOwnAbort)
				open.Wait()
			})
		})
	}
}

// losing scripts a pinboard that no longer knows the session, and that has
// placed ids of /c elsewhere.
func (h *harness) losing(ids ...string) func(c call) (reply, bool) {
	lost := make([]any, len(ids))
	for i, id := range ids {
		lost[i] = object{"ns": "/c", "id": id}
	}
	return func(c call) (reply, bool) {
		switch {
		case c.path == wire.PathHeartbeat && c.body["sessionId"] == "session-1":
			return reply{status: http.StatusConflict, body: object{"error": "unknown session", "reregister": true}}, true
		case c.path == wire.PathRegister:
			return reply{status: http.StatusOK, body: object{
				"sessionId": "session-2", "expiresInMs": 15000, "draining": false, "duplicates": lost,
			}}, true
		}
		return reply{}, false
	}
}

// An instance that was closing already when its id was lost answers nothing
// either, though a handler of it may take its time.
func TestAnInstanceThatIsLostWhileItClosesAnswersNothing(t *testing.T) {
	t.Parallel()
	var gate chan struct{}
	host := serving(func(_ *Instance, w http.ResponseWriter, _ *http.Request) { <-gate; writes(w) })
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		gate = make(chan struct{})
		h.start()
		kept, lost := h.beginGet("/c/kept"), h.beginGet("/c/lost")
		for _, id := range []string{"kept", "lost"} {
			h.w.dir.abort(key{"/c", id}, errOwnAbort)
		}
		h.pb.on(h.losing("lost"))
		h.after(3 * time.Second)
		require.ElementsMatch(t, []any{"kept", "lost"}, h.pb.last(t, wire.PathRegister).body["instances"].(object)["/c"])
		close(gate)
		synctest.Wait()
		require.Equal(t, anAnswer, kept.rec.Body.String())
		require.Equal(t, http.StatusServiceUnavailable, lost.rec.Code)
		require.NotContains(t, lost.rec.Body.String(), anAnswer)
	})
}

// A response that was begun, and then outlived the lease, reaches nobody whole.
// The instance and its other requests do not suffer from that.
func TestAResponseThatIsCutOffEndsItsRequestInGoodOrder(t *testing.T) {
	t.Parallel()
	var wrote error
	host := serving(func(_ *Instance, w http.ResponseWriter, _ *http.Request) {
		writes(w)
		<-time.After(20 * time.Second)
		_, wrote = io.WriteString(w, anAnswer)
	})
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		client := h.network()
		got, done := ask(client, h.outgoing(context.WithoutCancel(t.Context()), "/c/1"))
		h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusServiceUnavailable})
		<-done
		require.Error(t, got.err)
		require.ErrorIs(t, wrote, errLate)
		synctest.Wait()
		require.Zero(t, h.w.Stats().Instances[0].Tasks)
		require.True(t, h.live("/c", "1"))
	})
}

package worker

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

var (
	stressFor  = flag.Duration("stress.for", 0, "how long the random lives go on; default: 30 of them")
	stressSeed = flag.Uint64("stress.seed", 0, "the first seed")
)

// Workers lead random lives: requests of all kinds, applications that are slow,
// fail, panic and use the API from everywhere, a pinboard in trouble, clocks
// that jump, and a rival who takes each id that is free. The world around them
// knows what must never happen.
func TestRandomLives(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for seed := *stressSeed; seed < *stressSeed+30 || time.Since(began) < *stressFor; seed++ {
		if !t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { liveAtRandom(t, seed) })
		}) {
			return
		}
	}
}

// id returns one of few, so that requests meet.
func (w *world) id() string { return strconv.Itoa(w.rand(5)) }

func liveAtRandom(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	h := newHarness(t, Options{
		IdleTimeout: 20 * time.Second, DetachedTimeout: time.Minute, CloseTimeout: 5 * time.Second,
		MaxInstances: 4, MaxConcurrentActivations: 2, KeepPlacementOnIdle: w.rand(3) == 0,
	}, nil)
	w.h = h
	hosted := HostOptions{}
	if w.rand(2) == 0 { // without one, a request has another way in
		hosted.Middleware = w.guard
	}
	require.NoError(t, h.w.HostWith("/c", hosted, w.construct))
	h.pb.on(w.answer)
	client := h.network()
	h.pb.plane = planeOf(w, client)
	h.start()
	var clients sync.WaitGroup
	for range 60 + w.rand(60) {
		w.step(client, &clients, seed%2 == 0)
		synctest.Wait()
		w.check()
		if len(w.faults) > 0 {
			break
		}
	}
	if w.rand(2) == 0 {
		w.settleDown()
	}
	w.finish(client, &clients)
	require.Empty(t, w.faults, strings.Join(w.history, "\n"))
}

// step does one thing, and lets some time pass.
func (w *world) step(client *http.Client, clients *sync.WaitGroup, backwards bool) {
	h, id := w.h, w.id()
	what := w.rand(30)
	w.mu.Lock()
	w.note("step %d with %s", what, id)
	w.mu.Unlock()
	switch what {
	case 0:
		h.w.dir.abort(key{"/c", id}, errOwnAbort)
	case 1, 2, 3:
		w.steal(id)
	case 4:
		w.pause(time.Duration(w.rand(int(20*time.Second))), true)
	case 5:
		if backwards {
			h.step(0, -time.Duration(w.rand(int(20*time.Second))))
		} else {
			w.pause(time.Duration(w.rand(int(20*time.Second))), false)
		}
	case 6:
		h.step(0, time.Duration(w.rand(int(20*time.Second))))
	case 7:
		if w.rand(2) == 0 {
			h.w.Undrain()
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		_ = h.w.Drain(ctx, time.Duration(w.rand(40))*time.Second)
		cancel()
	case 8:
		h.w.Undrain()
	case 9:
		w.mu.Lock()
		w.drained, w.end = !w.drained && w.rand(3) == 0, w.now()+time.Duration(w.rand(40))*time.Second
		w.mu.Unlock()
	case 10:
		w.order(id)
	case 11:
		w.mu.Lock()
		w.sessions, w.rows = map[string]time.Duration{}, map[string]row{}
		w.quiet = w.now() + stressLease
		w.mu.Unlock()
	case 12:
		w.mu.Lock()
		w.displace = w.displace || w.rand(10) == 0
		w.mu.Unlock()
	case 13:
		h.after(time.Duration(w.rand(int(40 * time.Second))))
	default:
		w.request(client, clients, id)
	}
	switch w.rand(4) {
	case 0:
		h.after(time.Duration(w.rand(int(5 * time.Second))))
	case 1:
		h.after(time.Duration(w.rand(int(100 * time.Millisecond))))
	}
}

// pause stops the process, or suspends the whole machine.
func (w *world) pause(d time.Duration, stopped bool) {
	w.mu.Lock()
	w.note("stands still for %v, stopped: %t", d, stopped)
	w.frozen += d
	w.mu.Unlock()
	if stopped {
		w.h.step(d, d)
	} else {
		w.h.step(0, d)
	}
}

// order queues a control message.
func (w *world) order(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	message := object{"msgId": fmt.Sprint(w.next()), "type": wire.MessageWindDown, "ns": "/c", "id": id, "deadline": nil}
	if w.rand(3) > 0 {
		message["deadline"] = w.rand(30)
	}
	w.messages = append(w.messages, message)
}

var stressPaths = []string{"/plain", "/plain", "/stream", "/hijack", "/task", "/call"}

// request sends a client's request, as pinboard would, and looks at the answer.
func (w *world) request(client *http.Client, clients *sync.WaitGroup, id string) {
	r, here := w.route(id)
	if !here {
		return
	}
	path := stressPaths[w.rand(len(stressPaths))]
	ctx, cancel := context.WithCancel(context.Background())
	if w.rand(3) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(w.rand(int(30*time.Second))))
	}
	out := w.attested(ctx, r, "/c/"+id+path, attest.Claims{})
	if path == "/hijack" {
		out.Header.Set("Connection", "Upgrade")
		out.Header.Set("Upgrade", "websocket")
	}
	w.mu.Lock()
	w.note("request %s of %s at %v", path, id, r)
	w.mu.Unlock()
	clients.Go(func() {
		defer cancel()
		w.look(client, out, id, path, r)
	})
}

func (w *world) attested(ctx context.Context, r row, path string, claims attest.Claims) *http.Request {
	claims.Audience = r.session
	token, err := attest.Mint(w.h.w.reg.secret, claims, w.h.now().wall)
	require.NoError(w.t, err)
	out, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://worker:8000"+path, nil)
	require.NoError(w.t, err)
	out.Header.Set(wire.HeaderAttestation, token)
	out.Header.Set(wire.HeaderEpoch, strconv.FormatInt(r.epoch, 10))
	return out
}

// look judges an answer.
func (w *world) look(client *http.Client, out *http.Request, id, path string, r row) {
	res, err := client.Do(out)
	if err != nil {
		return
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	reason := res.Header.Get(wire.HeaderRefusal)
	w.refused(id, r, reason)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("answer to %s of %s at %v: %d %s %v", path, id, r, res.StatusCode, reason, err)
	switch res.StatusCode {
	case http.StatusOK:
		if err == nil && path != "/stream" && w.rivals(id) {
			w.fault("%s answered %q and is owned elsewhere", id, body)
		}
	case http.StatusServiceUnavailable:
		if res.Header.Get("Retry-After") == "" {
			w.fault("a 503 without Retry-After: %s", body)
		}
	case http.StatusSwitchingProtocols, http.StatusForbidden, http.StatusInternalServerError:
	default:
		w.fault("a %d: %s", res.StatusCode, body)
	}
}

// plane is pinboard's data plane, for the calls of instances.
type plane func(r *http.Request) (*http.Response, error)

func (p plane) RoundTrip(r *http.Request) (*http.Response, error) { return p(r) }

func planeOf(w *world, client *http.Client) plane {
	return func(r *http.Request) (*http.Response, error) {
		_, id, _, _ := splitPath(r.URL.Path)
		to, here := w.route(id)
		if !here {
			return reply{status: http.StatusOK, raw: "elsewhere"}.response(r)
		}
		out := w.attested(r.Context(), to, r.URL.Path, attest.Claims{Caller: r.Header.Get(wire.HeaderFrom), Depth: 1})
		res, err := client.Do(out)
		if err == nil {
			w.refused(id, to, res.Header.Get(wire.HeaderRefusal))
		}
		return res, err
	}
}

package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	stressLease = 15 * time.Second
	rival       = "rival" // the session of a worker elsewhere, which always lives
)

// row is one placement.
type row struct {
	session string
	epoch   int64
}

// world is a pinboard with a directory and leases, a rival who takes every id
// that is free, and all that is known of the application's instances. It fails
// the test as soon as something happens that must not.
type world struct {
	t    *testing.T
	h    *harness
	rand func(n int) int // safe for concurrent use

	mu       sync.Mutex
	frozen   time.Duration            // how long timers have stood still while time went on
	sessions map[string]time.Duration // when each ends
	quiet    time.Duration            // nothing is placed before: the registry was wiped
	minted   int
	epoch    int64
	rows     map[string]row
	released map[string]int64 // the highest epoch that was released
	calm     bool             // pinboard has no troubles
	drained  bool             // by its operator
	end      time.Duration    // of that drain
	messages []object
	displace bool
	lives    map[string]*life
	faults   []string
	history  []string
}

func newWorld(t *testing.T, seed uint64) *world {
	random := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	return &world{
		t: t, epoch: 1000, sessions: map[string]time.Duration{}, rows: map[string]row{},
		released: map[string]int64{}, lives: map[string]*life{},
		rand: func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return random.IntN(n)
		},
	}
}

// fault notes what must not happen. Called with the lock held.
func (w *world) fault(format string, args ...any) {
	w.note("FAULT: "+format, args...)
	w.faults = append(w.faults, w.history[len(w.history)-1])
}

// note keeps what happened, for the reader of a fault. Called with the lock held.
func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf("%v: ", w.now())+fmt.Sprintf(format, args...))
}

func (w *world) now() time.Duration { return time.Since(w.h.pb.began) + w.frozen }

func (w *world) alive(session string) bool {
	end, known := w.sessions[session]
	return session == rival || known && w.now() < end
}

// rivals reports whether somebody else owns the id.
func (w *world) rivals(id string) bool { return w.rows[id].session == rival }

// answer plays pinboard's registry.
func (w *world) answer(c call) (reply, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.calm && w.rand(12) == 0 {
		return w.trouble(c.path), true
	}
	w.note("%s %s", c.path, c.raw)
	out := reply{status: http.StatusOK, body: object{"released": 0}}
	switch c.path {
	case wire.PathRegister:
		out.body = w.register(c.body)
	case wire.PathHeartbeat:
		out = w.heartbeat(c.body)
	case wire.PathRelease:
		var items []object
		_ = json.Unmarshal(c.raw, &items)
		for _, item := range items {
			w.release(item)
		}
	case wire.PathDeregister:
		for id, l := range w.lives {
			if !l.quiet() {
				w.fault("deregistered with something of %s running: %+v", id, l)
			}
		}
		delete(w.sessions, c.body["sessionId"].(string))
	}
	if w.calm {
		return out, true
	}
	if w.rand(4) == 0 {
		out.delay = time.Duration(w.rand(4000)) * time.Millisecond
	}
	if w.rand(15) == 0 {
		out.err = errors.New("the answer was lost")
	}
	return out, true
}

// trouble is what a call gets that pinboard did not act on.
func (w *world) trouble(path string) reply {
	w.note("trouble for %s", path)
	switch w.rand(4) {
	case 0:
		return reply{status: http.StatusServiceUnavailable, retryAfter: "1"}
	case 1:
		if path == wire.PathRegister || path == wire.PathHeartbeat { // a 200 is a promise elsewhere
			return reply{status: http.StatusOK, raw: "{", delay: time.Second}
		}
	case 2:
		return reply{delay: time.Hour} // the call's own timeout ends it
	}
	return reply{err: errors.New("no connection")}
}

func (w *world) register(body object) object {
	for session := range w.sessions {
		delete(w.sessions, session)
	}
	w.minted++
	session := "session-" + strconv.Itoa(w.minted)
	w.sessions[session] = w.now() + stressLease
	answer := object{"sessionId": session, "expiresInMs": stressLease.Milliseconds()}
	var lost []object
	claimed, _ := body["instances"].(object)
	for namespace, ids := range claimed {
		for _, id := range ids.([]any) {
			id := id.(string)
			if w.alive(w.rows[id].session) {
				lost = append(lost, object{"ns": namespace, "id": id})
				continue
			}
			r := row{session: session, epoch: w.rows[id].epoch}
			if r.epoch == 0 {
				r.epoch = w.next()
			}
			w.rows[id] = r
		}
	}
	answer["duplicates"] = lost
	return w.withDrain(answer)
}

func (w *world) next() int64 {
	w.epoch++
	return w.epoch
}

func (w *world) heartbeat(body object) reply {
	session := body["sessionId"].(string)
	switch {
	case w.displace:
		return reply{status: http.StatusConflict, body: object{"superseded": true}}
	case !w.alive(session):
		return reply{status: http.StatusConflict, body: object{"reregister": true}}
	}
	w.sessions[session] = w.now() + stressLease
	acks, _ := body["acks"].([]any)
	for _, ack := range acks {
		if len(w.messages) > 0 && w.messages[0]["msgId"] == ack {
			w.messages = w.messages[1:]
		}
	}
	return reply{status: http.StatusOK, body: w.withDrain(object{
		"expiresInMs": stressLease.Milliseconds(), "messages": w.messages,
	})}
}

func (w *world) withDrain(answer object) object {
	answer["draining"] = w.drained
	if w.drained {
		answer["drainDeadline"] = max(w.end-w.now(), 0).Seconds()
	}
	return answer
}

func (w *world) release(item object) {
	id := item["id"].(string)
	text, _ := item["epoch"].(string)
	epoch, _ := strconv.ParseInt(text, 10, 64)
	if l := w.lives[id]; l != nil && l.inst.Epoch() == epoch && !l.still() {
		w.fault("%s was released with something of it running: %+v", id, l)
	}
	w.released[id] = max(w.released[id], epoch)
	if w.rows[id] == (row{item["sessionId"].(string), epoch}) {
		delete(w.rows, id)
	}
}

// route returns the placement to send a request for id by, and makes one if
// there is none.
func (w *world) route(id string) (row, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r, placed := w.rows[id]; placed && w.alive(r.session) {
		return r, r.session != rival
	}
	for session := range w.sessions {
		if w.alive(session) && w.now() >= w.quiet {
			w.rows[id] = row{session: session, epoch: w.next()}
			return w.rows[id], true
		}
	}
	return row{}, false
}

// steal places an id elsewhere if it may be, or gives it back.
func (w *world) steal(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, placed := w.rows[id]
	switch {
	case r.session == rival:
		delete(w.rows, id)
	case w.now() >= w.quiet && (!placed || !w.alive(r.session)):
		w.rows[id] = row{session: rival, epoch: w.next()}
		w.note("%s is placed elsewhere", id)
	}
}

// refused frees what a refusal gives up.
func (w *world) refused(id string, r row, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if wire.GivesUp(reason) && w.rows[id] == r {
		delete(w.rows, id)
	}
}

package e2e_test

import (
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	python = "python"
	golang = "go"
)

// worker is a running service process with the routes of testdata/app.py.
type worker struct {
	*process
	fleet    *fleet
	kind     string
	url      string // its advertise URL
	clientID string
	secret   string
}

// plan says how to run a worker. The zero value of all but kind is the usual.
type plan struct {
	kind      string
	headroom  int    // 1000 if 0
	buffer    string // seconds
	drain     string // seconds that a SIGTERM gives to drain; plain shutdown if ""
	rate      string // instances per second that a Go worker's drain closes; all at once if ""
	closing   string // seconds that a Go worker's instances take to close; none if ""
	forgetful string // namespace whose instances end at once, while their rows stay
	// What the worker registers of its deployment.
	hostname, env, takeover string
	epoch                   int
	gate                    string // file that a Go worker's /linger and its ids "slow…" wait for, while it is not there
}

// startWorkers starts one worker per plan, and returns them once all of them
// are registered and new ids are placed.
func (f *fleet) startWorkers(t *testing.T, plans ...plan) []*worker {
	t.Helper()
	reserve(t, plans...)
	started := make([]*worker, len(plans))
	for i, p := range plans {
		started[i] = f.launch(t, p)
	}
	for _, w := range started {
		w.awaitRegistered(t)
	}
	f.settle(t)
	return started
}

// reserve makes room for the Python processes of the plans: of all at once, so
// that two tests never wait for each other's.
func reserve(t *testing.T, plans ...plan) {
	t.Helper()
	count := int64(0)
	for _, p := range plans {
		if p.kind == python {
			count++
		}
	}
	require.NoError(t, pythons.Acquire(t.Context(), count))
	t.Cleanup(func() { pythons.Release(count) })
}

func (f *fleet) launch(t *testing.T, p plan) *worker {
	t.Helper()
	if p.headroom == 0 {
		p.headroom = 1000
	}
	if p.buffer == "" {
		p.buffer = seconds(buffer)
	}
	env := []string{
		"APP_PINBOARD_URL=" + f.url(),
		"APP_TOKEN=" + f.fleetToken,
		"APP_NAMESPACES=/rooms,/members,/kept",
		"APP_HEADROOM=" + strconv.Itoa(p.headroom),
		"APP_HEARTBEAT=" + seconds(heartbeat),
		"APP_BUFFER=" + p.buffer,
		"APP_DRAIN=" + p.drain,
		"APP_CLOSING=" + p.closing,
		"APP_FORGETFUL=" + p.forgetful,
		"APP_GATE=" + p.gate,
		"APP_HOSTNAME=" + p.hostname,
		"APP_ENV=" + p.env,
		"APP_TAKEOVER=" + p.takeover,
		"APP_EPOCH=" + strconv.Itoa(p.epoch),
		"PINBOARD_DRAIN_RATE=" + p.rate,
	}
	w := &worker{fleet: f, kind: p.kind}
	name := p.kind + "-" + strconv.Itoa(len(f.workers))
	if p.kind == python {
		w.process = start(t, name, env, pythonBinary, filepath.Join("testdata", "app.py"))
	} else {
		w.process = start(t, name, env, goworkerBinary)
	}
	f.workers = append(f.workers, w)
	return w
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// awaitRegistered waits until the worker is listed, and learns who it is.
func (w *worker) awaitRegistered(t *testing.T) {
	t.Helper()
	w.url = w.await(t, "ready", func(r record) bool { return r.Event == "ready" }).URL
	listed := await(t, w.name+" is registered", func() (listedWorker, bool) { return w.listed(t) })
	w.clientID = listed.ClientID
	w.fleet.client.call(t, http.MethodGet, w.url+"/control/secret").decode(t, &w.secret)
	require.Len(t, w.secret, 64)
}

// listed returns the worker as operators see it.
func (w *worker) listed(t *testing.T) (listedWorker, bool) {
	t.Helper()
	for _, l := range w.fleet.listWorkers(t) {
		if l.AdvertiseURL == w.url {
			return l, true
		}
	}
	return listedWorker{}, false
}

// favour makes new ids go to w. It is for fleets of two workers: of three, the
// two that a placement chooses from by chance may both be others.
func (f *fleet) favour(t *testing.T, w *worker) {
	t.Helper()
	headrooms := map[*worker]int{}
	for _, other := range f.workers {
		if !other.ended() {
			headrooms[other] = 1
		}
	}
	require.LessOrEqual(t, len(headrooms), 2)
	headrooms[w] = 1000
	f.setHeadrooms(t, headrooms)
}

// setHeadrooms has workers report headrooms, and waits until all of pinboard
// knows: what is listed may not yet be what placements see, but it is once the
// heartbeat is answered, and only then the worker sends another.
func (f *fleet) setHeadrooms(t *testing.T, headrooms map[*worker]int) {
	t.Helper()
	for w, h := range headrooms {
		f.client.post(t, w.url+"/control/headroom", h).requireStatus(t, http.StatusOK)
	}
	for w, h := range headrooms {
		awaitTrue(t, w.name+" reports its headroom", func() bool {
			var reports int
			f.client.call(t, http.MethodGet, w.url+"/control/reports").decode(t, &reports)
			l, ok := w.listed(t)
			return ok && l.Headroom == float64(h) && reports >= 2
		})
	}
}

// stats is what the worker tells about itself.
type stats struct {
	Draining        bool
	LeaseFlaps      int
	Reregistrations int
	Instances       []struct {
		Namespace, ID string
		Connections   int
	}
}

func (w *worker) stats(t *testing.T) (s stats) {
	t.Helper()
	w.fleet.client.call(t, http.MethodGet, w.url+"/_pinned/stats", header("Pinboard-Proxy-Secret", w.secret)).decode(t, &s)
	return s
}

// connections counts the streams open to one of the worker's instances.
func (w *worker) connections(t *testing.T, id string) int {
	t.Helper()
	for _, in := range w.stats(t).Instances {
		if in.ID == id {
			return in.Connections
		}
	}
	return 0
}

// told returns what the worker told of an instance.
func (w *worker) told(event, id string) []record {
	return w.matching(func(r record) bool { return r.Event == event && r.ID == id })
}

// awaitTold waits until the worker told something of an instance.
func (w *worker) awaitTold(t *testing.T, event, id string) {
	t.Helper()
	w.await(t, event+" "+id, func(r record) bool { return r.Event == event && r.ID == id })
}

package pinboard

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/memnet"
)

// fleetNode is a node in a bubble, whose workers answer its probes in memory.
type fleetNode struct {
	*regNode
	workers sync.Map // by host
}

func newFleetNode(t *testing.T, opts Options) *fleetNode {
	t.Helper()
	n := &fleetNode{}
	listener := memnet.NewListener()
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w, ok := n.workers.Load(r.Host)
		if !ok {
			rw.WriteHeader(http.StatusNotFound)
			return
		}
		w.(*regWorker).ServeHTTP(rw, r)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	n.regNode = newRegNode(t, opts, func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.Dial(ctx) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return n
}

// joins makes a worker that can register with the node.
func (n *fleetNode) joins() *regWorker {
	w := n.workerAt("")
	w.url = "http://" + w.client + ".test"
	n.workers.Store(w.client+".test", w)
	return w
}

func TestEveryNodeTellsOfTheFleetsWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		directory, here, there := MemoryStore(), &told{}, &told{}
		n, other := newFleetNode(t, Options{Store: directory, Hooks: here.hooks()}), newFleetNode(t, Options{Store: directory, Hooks: there.hooks()})
		other.get("/registry/nothing", "") // it has begun
		synctest.Wait()
		// The first call of all to this node.
		w := n.joins()
		w.register(fields{"namespaces": []string{"/a", "/b"}})
		time.Sleep(2 * time.Second)
		for _, seen := range []*told{here, there} {
			require.Equal(t, []string{"WorkerJoined " + w.client + " registered"}, seen.take())
			e := seen.who[0]
			require.Equal(t, WorkerEvent{
				Namespaces: []string{"/a", "/b"}, ClientID: w.client, SessionID: w.session, AdvertiseURL: w.url,
				Why: "registered", At: e.At,
			}, e)
			require.WithinDuration(t, time.Now(), e.At, 3*time.Second)
		}
		n.post("/registry/deregister", tokenWorker, fields{"sessionId": w.session})
		time.Sleep(2 * time.Second)
		for _, seen := range []*told{here, there} {
			require.Equal(t, []string{"WorkerLeft " + w.client + " deregistered"}, seen.take())
		}
		w.register()
		lapsing := w.session
		time.Sleep(n.pb.opts.LeaseTTL + 2*time.Minute) // the sweep notices
		for _, seen := range []*told{here, there} {
			require.Equal(t, []string{"WorkerJoined " + w.client + " registered", "WorkerLeft " + w.client + " lapsed"}, seen.take())
			require.Equal(t, lapsing, seen.who[len(seen.who)-1].SessionID)
		}
		late := &told{}
		third := newFleetNode(t, Options{Store: directory, Hooks: late.hooks()})
		third.get("/registry/nothing", "")
		time.Sleep(2 * time.Second)
		require.Empty(t, late.take(), "what was before it began")
	})
}

func TestAnOutageOfTheStoreCostsNoNewsOfWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		directory, seen := MemoryStore(), &told{}
		n, other := newFleetNode(t, Options{Store: directory, Hooks: seen.hooks()}), newFleetNode(t, Options{Store: directory})
		other.joins().register()
		time.Sleep(time.Second)
		n.store.fail(errors.New("away"), "Events")
		n.get("/registry/nothing", "")
		time.Sleep(3 * time.Second)
		n.store.fail(nil)
		time.Sleep(2 * time.Second) // now it knows where it begins
		n.store.fail(errors.New("away"), "Events")
		w := other.joins()
		w.register()
		time.Sleep(5 * time.Second)
		require.Empty(t, seen.take())
		n.store.fail(nil)
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"WorkerJoined " + w.client + " registered"}, seen.take())
	})
}

func TestManyEventsAtOnceAreAllTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seen := &told{}
		n := newFleetNode(t, Options{Hooks: seen.hooks()})
		n.get("/registry/nothing", "")
		synctest.Wait()
		n.store.fail(errors.New("away"), "Events")
		var want []string
		for range 600 {
			w := n.joins()
			w.register()
			want = append(want, "WorkerJoined "+w.client+" registered")
			time.Sleep(5 * time.Millisecond) // as many as a node records in a second
		}
		time.Sleep(time.Second)
		n.store.fail(nil)
		time.Sleep(eventsEvery) // one look
		synctest.Wait()
		require.Equal(t, want, slices.DeleteFunc(seen.take(), func(s string) bool { return s[:10] == "WorkerLeft" }))
	})
}

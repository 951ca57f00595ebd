package pinboard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// pacedWorker beats every 2.9 s, so as not to meet a turn, and closes and releases what it is told to wind
// down unless that is busy. It does so all at once when it hears of a drain, as
// the Python client does.
type pacedWorker struct {
	*regWorker
	t     *testing.T
	nodes []*regNode
	busy  map[string]bool
	ids   map[string]bool

	beats  int
	acks   []string
	told   map[string][]*float64 // the deadlines of each id
	asked  int                   // messages with a deadline
	closed []int                 // with each beat since the drain
	drains []*float64            // what each beat told of the drain: nil for none
}

// pacedFleet makes nodes on one store, and a worker that has so many ids.
func pacedFleet(t *testing.T, opts Options, nodes, count int) *pacedWorker {
	t.Helper()
	opts.Store = MemoryStore()
	w := &pacedWorker{t: t, busy: map[string]bool{}, ids: map[string]bool{}, told: map[string][]*float64{}, acks: []string{}}
	for range nodes {
		w.nodes = append(w.nodes, newRegNode(t, opts, func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("no such host")
		}))
	}
	w.regWorker = w.nodes[0].workerAt("http://127.0.0.1:1")
	w.record("/a")
	var ids []string
	for i := range count {
		ids = append(ids, fmt.Sprintf("id-%03d", i))
		w.ids[ids[i]] = true
	}
	w.n.reclaim(w.regWorker, "/a", ids...)
	for range w.nodes {
		w.beat(t)
	}
	return w
}

// beat sends a heartbeat to the next node, and obeys.
func (w *pacedWorker) beat(t *testing.T) {
	t.Helper()
	n := w.nodes[w.beats%len(w.nodes)]
	w.beats++
	a := n.post("/registry/heartbeat", tokenWorker, w.regWorker.beat(fields{"acks": w.acks}))
	require.Equal(t, http.StatusOK, a.status, a.text)
	var beat wire.Beat
	a.into(t, &beat)
	w.acks = []string{}
	closed := 0
	for _, m := range beat.Messages {
		w.told[m.ID] = append(w.told[m.ID], m.Deadline)
		w.acks = append(w.acks, m.MsgID)
		if m.Deadline != nil {
			w.asked++
		}
		if m.Deadline != nil && !w.busy[m.ID] && w.ids[m.ID] {
			w.release(t, n, m.ID)
			closed++
		}
	}
	if beat.Draining {
		for _, id := range w.left() {
			if !w.busy[id] {
				w.release(t, n, id)
				closed++
			}
		}
	}
	w.closed = append(w.closed, closed)
	w.drains = append(w.drains, beat.DrainDeadline)
	synctest.Wait() // what the node does because of the beat
}

func (w *pacedWorker) release(t *testing.T, n *regNode, id string) {
	t.Helper()
	delete(w.ids, id)
	a := n.post("/registry/release", tokenWorker, fields{"sessionId": w.session, "namespace": "/a", "id": id})
	require.Equal(t, http.StatusOK, a.status, a.text)
}

func (w *pacedWorker) left() (ids []string) {
	for id := range w.ids {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (w *pacedWorker) drain(t *testing.T, deadline any) {
	t.Helper()
	body := fields{"clientId": w.client}
	if deadline != missing {
		body["deadline"] = deadline
	}
	a := w.n.post("/registry/drain", tokenOperator, body)
	require.Equal(t, http.StatusOK, a.status, a.text)
	require.Equal(t, true, w.listed()["draining"], "no new placements from now on")
	w.closed, w.drains = nil, nil
}

// run lets so many heartbeats pass.
func (w *pacedWorker) run(t *testing.T, beats int) {
	t.Helper()
	for range beats {
		time.Sleep(2900 * time.Millisecond) // virtual
		w.beat(t)
	}
}

// Workers that close everything at once when they hear of a drain do so one
// instance after the other all the same.
func TestAnOperatorsDrainMovesInstancesOffAtItsRate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rate     float64
		deadline any
		count    int
		most     int // closed by one heartbeat; they come 2.9 s apart
		last     int // the heartbeat that closes the last one
		hears    int // the one that tells the worker of the drain, -1 for none
	}{
		// The first heartbeat sets it going, the next ones bring what was asked for meanwhile.
		"there is time":              {2, 60, 20, 6, 4, 18},
		"slower than the heartbeats": {0.25, 60, 4, 1, 5, 18},
		"the deadline is near":       {1, 20, 48, 12, 5, 5},
		"the deadline is too near":   {1, 5, 20, 20, 0, 0},
		"no deadline":                {1, missing, 20, 20, 0, -1},
		"no rate":                    {0, 60, 20, 20, 0, 0},
	} {
		for _, nodes := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d nodes", name, nodes), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := pacedFleet(t, Options{DrainRate: tc.rate}, nodes, tc.count)
					w.drain(t, tc.deadline)
					w.run(t, 20)
					require.Empty(t, w.left())
					require.LessOrEqual(t, slices.Max(w.closed), tc.most, "%v", w.closed)
					last := 0
					for i, closed := range w.closed {
						if closed > 0 {
							last = i
						}
					}
					// A second node that joins in may be ahead by one turn.
					require.Contains(t, []int{tc.last, tc.last - nodes + 1}, last, "%v", w.closed)
					hears := slices.IndexFunc(w.drains, func(d *float64) bool { return d != nil })
					require.Equal(t, tc.hears, hears)
					if hears < 0 {
						return
					}
					for _, d := range w.drains[hears:] {
						require.NotNil(t, d, "a drain that was told is not taken back")
					}
				})
			})
		}
	}
}

// The oldest placement goes first; every message has the drain's own deadline.
func TestADrainAtARateAsksInOrderAndUntilItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := pacedFleet(t, Options{DrainRate: 1}, 1, 5)
		w.busy["id-001"] = true
		w.n.reclaim(w.regWorker, "/a", append(w.left(), "a-young-one")...)
		w.ids["a-young-one"] = true
		w.drain(t, 30)
		w.run(t, 2)
		require.Equal(t, []string{"a-young-one", "id-001", "id-003", "id-004"}, w.left())
		require.Len(t, w.told["id-001"], 1)
		require.InDelta(t, 24.2, *w.told["id-001"][0], 0.001)
		w.run(t, 7)
		require.Equal(t, []string{"id-001"}, w.left())
		require.Len(t, w.told["id-001"], 1, "asked once")
		require.InDelta(t, 3.9, *w.drains[8], 0.001)
	})
}

// An id that has moved by itself is left alone where it lives now.
func TestADrainAtARateAsksNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := pacedFleet(t, Options{DrainRate: 1}, 1, 10)
		other := w.n.workerAt("http://127.0.0.1:2")
		other.record("/a")
		require.NoError(t, w.n.store.Activate(t.Context(), other.session))
		w.drain(t, 60)
		w.run(t, 1)
		for _, id := range w.left()[5:] {
			w.release(t, w.n, id)
		}
		w.n.reclaim(other, "/a", "id-007", "id-008")
		var beat wire.Beat
		for range 6 {
			w.run(t, 1)
			a := other.heartbeat()
			beat = wire.Beat{}
			a.into(t, &beat)
			require.Empty(t, beat.Messages)
		}
		require.Empty(t, w.left())
	})
}

// What is busy was asked and did not close: it may stay.
func TestARevokedDrainTakesBackWhatItHasAsked(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(t *testing.T, w *pacedWorker){
		"undrained": func(t *testing.T, w *pacedWorker) {
			a := w.n.post("/registry/undrain", tokenOperator, fields{"clientId": w.client})
			require.Equal(t, http.StatusOK, a.status, a.text)
		},
		"no deadline any more": func(t *testing.T, w *pacedWorker) { w.drain(t, missing) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := pacedFleet(t, Options{DrainRate: 1}, 2, 12)
				w.busy["id-000"] = true
				w.drain(t, 60)
				w.run(t, 2)
				require.Len(t, w.left(), 10)
				asked := w.asked
				again(t, w)
				synctest.Wait()
				w.run(t, 1)
				require.Len(t, w.told["id-000"], 2)
				require.Nil(t, w.told["id-000"][1])
				w.run(t, 5)
				require.Equal(t, asked, w.asked, "nobody is asked any more, by any node")
			})
		})
	}
}

// An operator was told that it is so.
func TestANodeThatClosesGoesOnTakingBackWhatADrainHasAsked(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"Rows", "Lookup", "WindDown"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := pacedFleet(t, Options{DrainRate: 10}, 2, 12)
				for id := range w.ids {
					w.busy[id] = true
				}
				w.drain(t, 60)
				w.run(t, 2)
				require.Len(t, w.told, 12)
				node := w.nodes[0]
				node.store.fail(errors.New("away"), op)
				a := node.post("/registry/undrain", tokenOperator, fields{"clientId": w.client})
				require.Equal(t, http.StatusOK, a.status, a.text)
				require.NoError(t, node.pb.Close())
				w.nodes = w.nodes[1:]
				w.run(t, 2)
				node.store.fail(nil)
				require.NoError(t, node.pb.Shutdown(t.Context()))
				w.run(t, 1)
				for id, told := range w.told {
					require.Nil(t, told[len(told)-1], id)
				}
			})
		})
	}
}

func TestAShutdownThatIsOverTakesNothingBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := pacedFleet(t, Options{DrainRate: 10}, 1, 12)
		w.drain(t, 60)
		node := w.nodes[0]
		node.store.fail(errors.New("away"), "WindDown")
		a := node.post("/registry/undrain", tokenOperator, fields{"clientId": w.client})
		require.Equal(t, http.StatusOK, a.status, a.text)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, node.pb.Shutdown(ctx), context.DeadlineExceeded)
		require.Less(t, time.Since(began), 2*time.Second)
	})
}

// A deadline that is moved is told to all anew.
func TestADrainAtARateThatIsMovedBeginsAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := pacedFleet(t, Options{DrainRate: 1}, 2, 12)
		w.busy["id-000"] = true
		w.drain(t, 60)
		w.run(t, 2)
		w.drain(t, 120)
		w.run(t, 5)
		require.Equal(t, []string{"id-000"}, w.left())
		last := w.told["id-000"][len(w.told["id-000"])-1]
		require.Greater(t, *last, 100.0)
	})
}

// A store that fails for a while holds the drain up, and the deadline still holds.
func TestADrainAtARateGoesOnWhenTheStoreDoes(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"Rows", "Client", "Lookup", "WindDown"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := pacedFleet(t, Options{DrainRate: 2}, 1, 12)
				w.drain(t, 60)
				w.n.store.fail(errors.New("away"), op)
				w.run(t, 3)
				require.Equal(t, []int{0, 0, 0}, w.closed)
				w.n.store.fail(nil)
				w.run(t, 4)
				require.Empty(t, w.left())
			})
		})
	}
}

// A worker that registers anew does not hear of the drain by that.
func TestARegistrationKeepsADrainAtItsRate(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{DrainRate: 1})
	w := n.worker()
	w.register()
	for deadline, want := range map[any]bool{600: false, 4: true} {
		require.Equal(t, http.StatusOK, n.post("/registry/drain", tokenOperator, fields{"clientId": w.client, "deadline": deadline}).status)
		a := w.register()
		require.Equal(t, want, a.field(t, "draining"))
		require.Equal(t, want, a.field(t, "drainDeadline") != nil)
	}
}

// A queue that is full, and a node that ends, leave nothing running.
func TestADrainAtARateWaitsForAFullQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := pacedFleet(t, Options{DrainRate: 1000}, 1, store.MaxMessages+50)
		w.drain(t, 60)
		w.run(t, 2)
		require.Equal(t, []int{0, store.MaxMessages}, w.closed)
		w.run(t, 2)
		require.Empty(t, w.left())
	})
}

package pinboard

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

// silentWorkers is a dialer to workers that accept and stay silent.
func silentWorkers(t *testing.T) regDial {
	return func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		t.Cleanup(func() { _ = there.Close() })
		return here, nil
	}
}

// later sends a call and returns where its answer comes.
func (n *regNode) later(path, token string, body fields) <-chan regAnswer {
	answer := make(chan regAnswer, 1)
	go func() { answer <- n.post(path, token, body) }()
	synctest.Wait()
	return answer
}

func TestRegistrationsAtOnceAreBoundInAllAndForEachCredential(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{Limits: Limits{Registrations: 2, RegistrationsPerKey: 1}}, silentWorkers(t))
		register := func(token string) <-chan regAnswer {
			return n.later("/registry/register", token, n.workerAt("http://127.0.0.1:1").registration())
		}
		refused := func(answer <-chan regAnswer) {
			a := <-answer
			a.requireRefusal(t, http.StatusServiceUnavailable, "too many workers")
			require.Equal(t, "2", a.header.Get("Retry-After"))
		}
		probing := func(answer <-chan regAnswer) {
			(<-answer).requireRefusal(t, http.StatusServiceUnavailable, "does not answer")
		}
		// A probe takes 2 s, and the patience is 1 s.
		began := time.Now()
		first, again := register(tokenWorker), register(tokenWorker)
		require.EqualValues(t, 1, n.dials.Load())
		other := register(tokenHost)
		require.EqualValues(t, 2, n.dials.Load(), "one credential does not keep another waiting")
		third := register(tokenSome)
		refused(again)
		refused(third)
		require.Equal(t, slotPatience, time.Since(began))
		time.Sleep(slotPatience / 2)
		waiting := register(tokenWorker)
		require.EqualValues(t, 2, n.dials.Load())
		probing(first)
		probing(other)
		probing(waiting) // it had its turn
		require.EqualValues(t, 3, n.dials.Load())
		probing(register(tokenWorker))
		total, keys := n.pb.limiter.registrations.Use()
		require.Zero(t, total+keys)
	})
}

func TestAHeartbeatTooManyToProbeRenewsItsLeaseAllTheSame(t *testing.T) {
	t.Parallel()
	for _, token := range []string{tokenWorker, tokenHost} {
		synctest.Test(t, func(t *testing.T) {
			limits := Limits{Probes: 2, ProbesPerKey: 1}
			if token != tokenWorker {
				limits.Probes = 1
			}
			n := newRegNode(t, Options{Limits: limits}, silentWorkers(t))
			hanging, honest := n.workerAt("http://127.0.0.1:1"), n.workerAt("http://127.0.0.1:2")
			hanging.record("/a")
			honest.record("/a")
			first := n.later("/registry/heartbeat", tokenWorker, hanging.beat())
			time.Sleep(time.Second)
			a := n.post("/registry/heartbeat", token, honest.beat())
			require.Equal(t, http.StatusOK, a.status, a.text)
			require.EqualValues(t, 15_000, a.field(t, "expiresInMs"))
			require.Nil(t, a.field(t, "degraded"))
			require.EqualValues(t, 1, n.dials.Load())
			require.Equal(t, true, (<-first).field(t, "degraded"))
			require.Equal(t, true, n.post("/registry/heartbeat", token, honest.beat()).field(t, "degraded"), "it is probed again")
			total, keys := n.pb.limiter.probes.Use()
			require.Zero(t, total+keys)
		})
	}
}

func TestBodiesOfWorkersCallsAreBoundTogether(t *testing.T) {
	t.Parallel()
	inServedBubble(t, func(t *testing.T, n *regNode, w *regWorker, c pipeConn) {
		least := Limits{RegistryBytes: maxWorkerBody}
		least.fill(nil)
		n.pb.limiter = newLimiter(least)
		c.head("/registry/register", tokenWorker, maxWorkerBody, '{')
		synctest.Wait()
		long := w.registration(fields{"more": strings.Repeat("x", smallBody)})
		n.post("/registry/register", tokenWorker, long).requireRefusal(t, http.StatusServiceUnavailable, "too many workers")
		w.register() // a short one
		require.Equal(t, http.StatusRequestTimeout, c.answer().StatusCode)
		c.requireClosed()
		w.register(fields{"more": strings.Repeat("x", smallBody)})
		require.True(t, n.pb.limiter.bodies.TryAcquire(maxWorkerBody), "all was given back")
		time.Sleep(time.Second) // the server closes in its own time
	})
}

// Some bytes that never come must not keep the workers of others out.
func TestOneCredentialLeavesHalfOfTheBodiesToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := Limits{RegistryBytes: 4 * maxWorkerBody}
		all.fill(nil)
		l := newLimiter(all)
		greedy, other := &passport.Identity{Provider: "p", Subject: "greedy"}, &passport.Identity{Provider: "p", Subject: "other"}
		for range 2 { // all is given back
			var ends []func()
			for _, who := range []*passport.Identity{greedy, greedy, other, other} {
				if len(ends) == 2 {
					_, err := l.body(t.Context(), greedy, smallBody+1, maxWorkerBody)
					require.Equal(t, errBusyBodies, err)
				}
				done, err := l.body(t.Context(), who, -1, maxWorkerBody)
				require.NoError(t, err)
				ends = append(ends, done)
			}
			_, err := l.body(t.Context(), &passport.Identity{Provider: "p", Subject: "third"}, smallBody+1, maxWorkerBody)
			require.Equal(t, errBusyBodies, err)
			for _, done := range ends {
				done()
			}
			require.Empty(t, l.bodiesOf)
		}
	})
}

func TestTooManyLiveIDsAre400(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{Limits: Limits{Instances: 3}})
	w := n.worker()
	ids := func(a, b int) fields {
		return fields{"instances": map[string][]string{"/a": strings.Split("wxyz"[:a], ""), "/b": strings.Split("wxyz"[:b], "")}}
	}
	a := n.post("/registry/register", tokenWorker, w.registration(ids(2, 2)))
	a.requireRefusal(t, http.StatusBadRequest, "instances")
	require.Contains(t, a.text, "has 4 ids, must have at most 3")
	require.Contains(t, n.said.String(), `"registration refused","client":"`+w.client+`"`)
	require.Zero(t, w.probes.Load())
	w.register(ids(2, 1))
}

func TestALongHeartbeatIsNotRead(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register()
	pad := func(length int) fields { return fields{"more": strings.Repeat("x", length)} }
	w.heartbeat(pad(maxBeatBody)).requireRefusal(t, http.StatusRequestEntityTooLarge, "too large")
	require.Equal(t, http.StatusOK, w.heartbeat(pad(maxBeatBody-1000)).status)
}

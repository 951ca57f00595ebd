//go:build linux

package faults_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
	"github.com/pinboard-go/pinboard/internal/redistest"
)

// lostIDs is how many ids are placed in what the new master never sees.
const lostIDs = 12

func TestAFailoverThatLosesWritesStaysInItsWindow(t *testing.T) {
	t.Parallel()
	f := newFleet(t, usual)
	standby := f.newStandby(t)
	l := startLoad(t, f, 1)

	f.requireRecovered(t, l) // a new store's quarantine is longer than what is to be lost
	standby.link.Cut()
	from := faults.Now()
	lost := map[int]faults.Ack{}
	await(t, "ids are placed that the standby does not hear of", func() bool {
		number := l.unused()
		if a, err := l.operate(context.Background(), f.nodes[0], number, 0); err == nil {
			lost[number] = a
		}
		return len(lost) == lostIDs
	})
	f.redis.Kill()
	standby.promote(t)
	f.store.Store(standby.server.Addr())
	to := faults.Now()

	// The same ids again, for clients that would have them elsewhere.
	l.shift.Add(1000)
	for number := range lost {
		await(t, idOf(number)+" is served again", func() bool {
			_, err := l.operate(context.Background(), f.nodes[1], number, 0)
			return err == nil
		})
	}
	waitUntil(faults.Now() + lease) // for owners of before to be heard of, if they are
	f.requireRecovered(t, l)
	acks := l.end()
	f.stop()
	h := f.history(t, acks)
	outside := faults.Check(h)
	h.Failovers = []faults.Failover{{From: from, To: to, Window: lease}}
	found := faults.Check(h)
	report(t, found, []timed{{at: from, what: "the standby hears nothing any more"}, {at: to, what: "and is the master now"}})
	require.NotEmpty(t, outside, "something was placed twice")
	twice, longest := overlaps(h, lost, to)
	t.Logf("writes of %v were lost; of %d ids placed in them %d were placed a second time; the first owner lived on for up to %v",
		to-from, len(lost), twice, longest)
}

// overlaps returns how many of the ids have a second owner, and for how long the
// first ones took themselves for the owner at the same time.
func overlaps(h faults.History, lost map[int]faults.Ack, to time.Duration) (twice int, longest time.Duration) {
	for _, first := range lost {
		second, last := time.Duration(0), time.Duration(0)
		for _, e := range h.Events {
			switch {
			case e.ID != first.ID:
			case e.Life == first.Life:
				last = max(last, e.Begin)
			case e.Begin > to && (second == 0 || e.Begin < second):
				second = e.Begin
			}
		}
		if second > 0 {
			twice++
			longest = max(longest, last-second)
		}
	}
	return twice, longest
}

// standby is a replica of the fleet's Redis.
type standby struct {
	server *redistest.Server
	client rueidis.Client
	link   *faults.Link // to the master
}

func (f *fleet) newStandby(t *testing.T) *standby {
	t.Helper()
	s := &standby{link: &faults.Link{}}
	gate := f.newGate(t, func(*net.TCPAddr) (*faults.Link, string) { return s.link, f.redis.Addr() })
	host, port, err := net.SplitHostPort(gate.Addr())
	require.NoError(t, err)
	s.server = redistest.New(t, redistest.Options{TCP: true, Args: []string{"--replicaof", host + " " + port}})
	option := s.server.ClientOption()
	option.DisableCache = true
	s.client = redistest.NewClient(t, option)
	// What was written during the first copy is handed on only after it.
	await(t, "the standby hears what is written", func() bool {
		mark := strconv.FormatInt(int64(faults.Now()), 10)
		f.command(t, "SET", "mark", mark)
		f.command(t, "WAIT", "1", "100")
		got, err := s.client.Do(t.Context(), s.client.B().Get().Key("mark").Build()).ToString()
		return err == nil && got == mark
	})
	return s
}

func (s *standby) promote(t *testing.T) {
	t.Helper()
	require.NoError(t, s.client.Do(t.Context(), s.client.B().Arbitrary("REPLICAOF", "NO", "ONE").Build()).Error())
}

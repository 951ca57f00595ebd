//go:build linux

package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pinboard-go/pinboard/internal/faults"
)

const (
	idCount     = 24
	clientCount = 8
	thinkTime   = 40 * time.Millisecond
	// patience is how long a client waits for an answer. What it gave up on
	// may be done all the same.
	patience = 2 * time.Second
)

// load is the fleet's clients.
type load struct {
	fleet  *fleet
	client *http.Client
	ops    atomic.Int64
	shift  atomic.Int64 // of the addresses that clients seem to have
	group  sync.WaitGroup
	stop   context.CancelFunc

	mu       sync.Mutex
	acks     []faults.Ack
	statuses map[string]int
}

func newLoad(f *fleet) *load {
	return &load{
		fleet: f, statuses: map[string]int{},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clientCount, IdleConnTimeout: 2 * time.Second}},
	}
}

// startLoad starts the clients; end, or the end of the test, ends them.
func startLoad(t *testing.T, f *fleet, seed uint64) *load {
	t.Helper()
	l := newLoad(f)
	t.Cleanup(func() { l.end() })
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	for i := range clientCount {
		random := rand.New(rand.NewPCG(seed, uint64(i)+1))
		l.group.Go(func() { l.run(ctx, random) })
	}
	return l
}

func (l *load) end() []faults.Ack {
	l.stop()
	l.group.Wait()
	l.client.CloseIdleConnections()
	return l.acks
}

func (l *load) run(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		number := random.IntN(idCount)
		if random.IntN(2) == 0 {
			number /= 4 // some are in more use than others, which idle at times
		}
		slow := 0
		if random.IntN(8) == 0 {
			slow = 50 + random.IntN(400)
		}
		_, _ = l.operate(ctx, l.fleet.nodes[random.IntN(nodeCount)], number, slow)
		timer := time.NewTimer(time.Duration(random.Int64N(int64(2 * thinkTime))))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

// unused returns the number of an id that was never asked for.
func (l *load) unused() int { return idCount + int(l.ops.Load()) }

// idOf names an id with its namespace, as the record does. An id of one
// namespace is of one bucket.
func (f *fleet) idOf(number int) string {
	return fmt.Sprintf("%s/id-%d", f.namespaces[number%len(f.namespaces)], number)
}

// operate does one operation on an id through a node, and records the ack.
func (l *load) operate(ctx context.Context, n *node, number, slow int) (faults.Ack, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a := faults.Ack{ID: l.fleet.idOf(number), Op: l.ops.Add(1), Sent: faults.Now()}
	url := fmt.Sprintf("http://%s%s/op?op=%d&slow=%d", n.gate.Addr(), a.ID, a.Op, slow)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return a, err
	}
	// Each id has its own preferred worker, else one worker would have all.
	address := number + int(l.shift.Load())
	req.Header.Set("X-Forwarded-For", fmt.Sprintf("10.0.%d.%d", address/250%250, address%250))
	res, err := l.client.Do(req)
	if err != nil {
		l.count("no answer")
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	a.Received = faults.Now()
	switch {
	case err != nil:
		l.count("answer cut")
		return a, err
	case res.StatusCode != http.StatusOK:
		l.count(res.Status)
		return a, fmt.Errorf("%s: %s", res.Status, body)
	}
	var told struct {
		Process, Life string
		Epoch         int64
		Count         int
	}
	if err := json.Unmarshal(body, &told); err != nil {
		return a, fmt.Errorf("the answer %q: %w", body, err)
	}
	a.Process, a.Life, a.Epoch, a.Count = told.Process, told.Life, told.Epoch, told.Count
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks = append(l.acks, a)
	l.statuses["acked"]++
	return a, nil
}

func (l *load) count(outcome string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statuses[outcome]++
}

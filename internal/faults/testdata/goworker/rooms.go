package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinboard-go/pinboard/internal/faults"
	"github.com/pinboard-go/pinboard/worker"
)

// rooms makes the instances of a process.
type rooms struct {
	*recorder
	process string
	tick    time.Duration
	lives   atomic.Int64
}

// room is one instance: it counts operations.
type room struct {
	*rooms
	inst *worker.Instance
	life string

	mu            sync.Mutex
	count         int
	registrations int64 // when it last heard its epoch
}

func (rs *rooms) open(inst *worker.Instance) (http.Handler, error) {
	r := &room{rooms: rs, inst: inst, life: rs.process + "/" + strconv.FormatInt(rs.lives.Add(1), 10), registrations: -1}
	go r.watch()
	return r, nil
}

// id is the instance's in the record.
func (r *room) id() string { return r.inst.Namespace() + "/" + r.inst.ID() }

// ServeHTTP carries out the operation that the query names: after a pause of
// "slow" milliseconds, during which the process may be frozen or lose its lease.
func (r *room) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	entered := faults.Now()
	came, ok := req.Context().Value(arrivalKey{}).(arrival)
	op, err := strconv.ParseInt(req.FormValue("op"), 10, 64)
	slow, _ := strconv.Atoi(req.FormValue("slow"))
	if !ok || err != nil {
		http.Error(w, "not an operation", http.StatusBadRequest)
		return
	}
	if slow > 0 {
		select {
		case <-time.After(time.Duration(slow) * time.Millisecond):
		case <-req.Context().Done():
			return
		}
	}
	e := r.carryOut(came, entered, op)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"process": r.process, "life": r.life, "epoch": e.Epoch, "count": e.Count})
}

func (r *room) carryOut(came arrival, entered time.Duration, op int64) faults.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	r.registrations = max(r.registrations, came.registrations)
	e := faults.Event{
		Kind: faults.Served, ID: r.id(), Life: r.life, Epoch: came.epoch, Op: op, Count: r.count,
		Begin: came.at, Entered: entered, End: faults.Now(),
	}
	r.write(e)
	return e
}

// watch ticks as long as the instance lives.
func (r *room) watch() {
	ticker := time.NewTicker(r.tick)
	defer ticker.Stop()
	for {
		select {
		case <-r.inst.Context().Done():
			return
		case <-ticker.C:
			r.tickOnce()
		}
	}
}

// tickOnce does what an application does that may act only as the owner. The
// time is taken before and after it asks whether it is. An epoch that was heard
// before the last registration may have been raised by it.
func (r *room) tickOnce() {
	r.mu.Lock()
	defer r.mu.Unlock()
	epoch, at := r.inst.Epoch(), faults.Now()
	owner := context.Cause(r.inst.LeaseContext()) == nil && !r.inst.Lease().Expired
	entered := faults.Now()
	if owner && r.inst.Epoch() == epoch && r.recorder.registrations.Load() == r.registrations {
		r.write(faults.Event{Kind: faults.Ticked, ID: r.id(), Life: r.life, Epoch: epoch, Begin: at, Entered: entered})
	}
}

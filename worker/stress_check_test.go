package worker

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
)

// check looks at the worker while nothing of it runs.
func (w *world) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.h.w.dir
	activations, evictions := d.totals()
	expired := w.h.w.lease.state() == leaseExpired
	if ended := w.h.w.LeaseContext().Err() != nil; ended != (expired || w.h.w.Superseded()) {
		w.fault("the lease's context has ended: %t, the lease has expired: %t", ended, expired)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	live, hosted := int64(0), w.h.w.host("/c").live
	for k, inst := range d.instances {
		w.checkInstance(k.id, inst)
		if inst.state == stateLive {
			live++
		}
	}
	if live != activations-evictions || hosted != len(d.instances) {
		w.fault("%d live, %d activated, %d evicted, %d of %d of the host",
			live, activations, evictions, hosted, len(d.instances))
	}
	if len(d.fences.byID) > 5 {
		w.fault("%d fences", len(d.fences.byID))
	}
}

func (w *world) checkInstance(id string, inst *Instance) {
	d := inst.dir
	if inst.plain+inst.streams != inst.flights.n || min(inst.plain, inst.streams, inst.tasks, inst.waiting) < 0 {
		w.fault("%s counts wrongly: %d plain, %d streams, %d flights, %d tasks, %d waiting",
			id, inst.plain, inst.streams, inst.flights.n, inst.tasks, inst.waiting)
	}
	if inst.state != stateLive || inst.index >= 0 || inst.idling.asking {
		return
	}
	if at, cause := d.endOf(inst); at != never {
		w.fault("%s would never end: %v", id, cause)
	}
}

// settleDown ends all troubles, and looks at what is left behind.
func (w *world) settleDown() {
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	w.h.after(3 * time.Minute)
	w.check()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, l := range w.lives {
		r, placed := w.rows[id]
		cause := context.Cause(l.inst.Context())
		if !placed || !w.alive(r.session) || r.session == rival || cause == nil || errors.Is(cause, ErrActivation) ||
			w.h.w.opts.KeepPlacementOnIdle && errors.Is(cause, errIdle) {
			continue
		}
		if r.epoch == l.inst.Epoch() && l.closed {
			w.fault("%s has ended (%v) and is still placed here at %d", id, cause, r.epoch)
		}
	}
}

// finish shuts the worker down: in peace, or first with too little time.
func (w *world) finish(client *http.Client, clients *sync.WaitGroup) {
	ended := false
	var late sync.WaitGroup
	late.Go(func() {
		for range w.rand(10) {
			w.request(client, clients, w.id())
			w.sleep(context.Background(), time.Second)
		}
	})
	if w.rand(2) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(w.rand(int(3*time.Second))))
		err := w.h.w.Shutdown(ctx) // with or without pinboard's consent
		ended = err == nil || errors.Is(err, ErrNotDeregistered)
		cancel()
	}
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	require.NoError(w.t, w.h.w.Shutdown(ctx))
	w.mu.Lock()
	for id, l := range w.lives {
		if !l.quiet() || l.callbacks > 0 || l.inst.Context().Err() == nil {
			w.fault("%s outlives the worker: %+v", id, l)
		}
	}
	if session := w.h.w.reg.sessionID(); !ended && w.alive(session) {
		w.fault("%s outlives the worker", session)
	}
	w.mu.Unlock()
	require.NoError(w.t, w.h.w.Shutdown(ctx), "again")
	late.Wait()
	clients.Wait()
	w.h.after(10 * time.Second) // a deaf middleware is the server's affair
}

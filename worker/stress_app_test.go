package worker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// life is what runs of one instance. Guarded by world.mu.
type life struct {
	inst                  *Instance
	plain, streams, tasks int
	constructing, closed  bool
	callbacks             int
}

// still reports whether nothing runs that must not once the id is released.
func (l *life) still() bool { return l.plain+l.tasks == 0 && !l.constructing && l.closed }

// quiet reports whether nothing runs at all.
func (l *life) quiet() bool { return l.still() && l.streams == 0 }

// within counts something that runs while f does.
func (w *world) within(count *int, f func()) {
	w.mu.Lock()
	*count++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		*count--
		w.mu.Unlock()
	}()
	f()
}

// sleep lasts up to limit, or until ctx ends unless the application is deaf.
func (w *world) sleep(ctx context.Context, limit time.Duration) {
	timer := time.NewTimer(time.Duration(w.rand(int(limit))))
	defer timer.Stop()
	if w.rand(8) == 0 {
		ctx = context.Background()
	}
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// trip fails, or panics, now and then.
func (w *world) trip() error {
	switch w.rand(20) {
	case 0:
		panic(http.ErrAbortHandler) // which no server logs
	case 1:
		return errors.New("the application fails")
	}
	return nil
}

// guard is the middleware of all requests, if there is one: slow, and denying some.
func (w *world) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch w.rand(10) {
		case 0:
			http.Error(rw, "denied", http.StatusForbidden)
			return
		case 1:
			w.sleep(r.Context(), 6*time.Second)
		}
		next.ServeHTTP(rw, r)
	})
}

// construct is the constructor of all instances.
func (w *world) construct(inst *Instance) (http.Handler, error) {
	id := inst.ID()
	l := &life{inst: inst, constructing: true}
	w.mu.Lock()
	if before := w.lives[id]; before != nil && !before.quiet() {
		w.fault("%s lives twice: %+v", id, before)
	}
	if w.rivals(id) && w.h.w.lease.state() != leaseExpired {
		w.fault("%s is constructed here and owned elsewhere", id)
	}
	w.lives[id] = l
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		l.constructing = false
		w.mu.Unlock()
	}()
	inst.OnClose(func(ctx context.Context) error {
		defer func() {
			w.mu.Lock()
			if l.plain+l.tasks > 0 || l.constructing {
				w.fault("OnClose of %s with something of it running: %+v", id, l)
			}
			l.closed = true
			w.mu.Unlock()
		}()
		w.sleep(ctx, 3*time.Second)
		w.poke(inst)
		return w.trip()
	})
	if w.rand(3) == 0 {
		inst.OnIdle(func() (end bool) {
			w.within(&l.callbacks, func() { w.sleep(inst.Context(), 5*time.Second); w.poke(inst); end = w.rand(2) == 0 })
			_ = w.trip()
			return end
		})
	}
	if w.rand(3) == 0 {
		inst.OnWindDown(func() {
			w.within(&l.callbacks, func() { w.sleep(inst.Context(), 2*time.Second); w.poke(inst) })
			_ = w.trip()
		})
	}
	inst.SetStats(func() map[string]any { return map[string]any{"healthy": inst.Lease().Healthy} })
	switch w.rand(6) {
	case 0:
		w.task(l)
	case 1:
		w.sleep(inst.Context(), 4*time.Second)
	case 2:
		w.poke(inst)
	}
	if err := w.trip(); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.serve(l, rw, r) }), nil
}

func (w *world) task(l *life) {
	w.mu.Lock()
	l.tasks++
	w.mu.Unlock()
	began := l.inst.Go(func(ctx context.Context) {
		defer func() {
			w.mu.Lock()
			l.tasks--
			w.mu.Unlock()
		}()
		w.sleep(ctx, 2*time.Minute)
		w.poke(l.inst)
		_ = w.trip()
	})
	if !began {
		w.mu.Lock()
		l.tasks--
		w.mu.Unlock()
	}
}

// poke uses the API from wherever the application runs.
func (w *world) poke(inst *Instance) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	switch w.rand(40) {
	case 0:
		inst.Abort()
	case 1:
		inst.WindDown(time.Duration(w.rand(20)) * time.Second)
	case 2:
		inst.WindDown(NoDeadline)
	case 3:
		_ = w.h.w.Stats()
	case 4:
		_ = inst.LeaseContext().Err()
		_ = w.h.w.LeaseContext().Err()
	case 5:
		_ = w.h.w.Drain(ctx, time.Duration(w.rand(40))*time.Second)
		w.h.w.Undrain()
	case 6:
		_, _ = inst.EvictionDeadline()
		inst.OnClose(func(context.Context) error { return nil })
		inst.OnWindDown(func() {})
	case 7:
		w.callOther(context.Background(), inst)
	}
}

func (w *world) callOther(ctx context.Context, inst *Instance) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/c/"+w.id()+"/plain", nil)
	if err != nil {
		return
	}
	if res, err := inst.Client().Do(r); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// serve is the handler of all instances.
func (w *world) serve(l *life, rw http.ResponseWriter, r *http.Request) {
	count := &l.plain
	streams := r.URL.Path == "/stream" || r.URL.Path == "/hijack"
	if streams {
		count = &l.streams
	}
	expired := w.h.w.lease.state() == leaseExpired // nothing has waited since it was let in
	w.mu.Lock()
	id := l.inst.ID()
	switch {
	case l.constructing, l.closed, w.lives[id] != l:
		w.fault("a request got to %s before or after its time: %+v", id, l)
	case w.rivals(id):
		w.fault("a request got to %s, which is owned elsewhere", id)
	case expired:
		w.fault("a request got to %s past the lease", id)
	}
	w.mu.Unlock()
	w.within(count, func() {
		switch r.URL.Path {
		case "/stream":
			_ = http.NewResponseController(rw).Flush()
			w.sleep(r.Context(), time.Minute)
		case "/hijack":
			w.hijacks(rw, r)
			return
		case "/task":
			w.task(l)
		case "/call":
			w.callOther(r.Context(), l.inst)
		}
		w.sleep(r.Context(), 3*time.Second)
		w.poke(l.inst)
		_, _ = io.WriteString(rw, "answered")
		_ = w.trip()
	})
}

func (w *world) hijacks(rw http.ResponseWriter, r *http.Request) {
	conn, both, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = both.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
	_ = both.Flush()
	w.sleep(r.Context(), time.Minute)
}

package worker

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	releaseAttempts = 3
	attemptPause    = 200 * time.Millisecond // times the number of the attempt
	releaseBatch    = 1000                   // rows in one call
)

// released is one placement that this worker gave back.
type released struct {
	key
	epoch int64 // 0: not known, any epoch
}

// releaseQueue holds what is to be released. Closers that come while a call is
// under way share the next one.
type releaseQueue struct {
	sending chan struct{} // holds a token during calls: one flush at a time

	mu      sync.Mutex
	pending []released
}

func newReleaseQueue() *releaseQueue { return &releaseQueue{sending: make(chan struct{}, 1)} }

func (q *releaseQueue) add(items ...released) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending = append(q.pending, items...)
}

func (q *releaseQueue) take() []released {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.pending
	q.pending = nil
	return items
}

func (q *releaseQueue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending) == 0
}

// release frees the placement at pinboard. It returns when pinboard has
// answered, or when there is no session to release from or no success after
// some attempts; then the release is kept for the next session or heartbeat.
func (r *registration) release(ctx context.Context, item released) {
	if r.opts.local() {
		return
	}
	r.releases.add(item)
	r.flush(ctx)
}

// discard gives back a placement that a middleware let no request through to:
// else every id that anybody asks for in vain would stay placed here.
func (d *directory) discard(k key, epoch int64, h *host) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if epoch == 0 || h.opts.KeepPlacementOnIdle || d.refusing || d.instances[k] != nil ||
		d.fences.admit(k, epoch, d.clock().mono) != nil {
		return
	}
	d.fences.giveUp(k, epoch, d.clock().mono)
	d.running.Go(func() { d.release(d.life, released{key: k, epoch: epoch}) })
}

// flushLater sends what is pending without keeping the caller: the loop must
// not miss its next heartbeat over it.
func (r *registration) flushLater(ctx context.Context) {
	if !r.releases.empty() {
		r.running.Go(func() { r.flush(ctx) })
	}
}

func (r *registration) flush(ctx context.Context) {
	select {
	case r.releases.sending <- struct{}{}:
		defer func() { <-r.releases.sending }()
	case <-ctx.Done():
		return
	}
	session := r.sessionID()
	if session == "" {
		return
	}
	for items := r.releases.take(); len(items) > 0; {
		batch := items[:min(len(items), releaseBatch)]
		items = items[len(batch):]
		if !r.postRelease(ctx, session, batch) {
			r.keep(batch, items)
			return
		}
		// A registration that was under way may have claimed them for the next
		// session, out of this one's reach: released again from there.
		if r.sessionID() != session {
			r.keep(batch, items)
			return
		}
	}
}

func (r *registration) postRelease(ctx context.Context, session string, batch []released) bool {
	body := make([]wire.Release, len(batch))
	for i, item := range batch {
		body[i] = wire.Release{SessionID: session, Namespace: item.namespace, ID: item.id, Epoch: item.epoch}
	}
	return r.postPersistently(ctx, "release", wire.PathRelease, body) == nil
}

// keep puts back what could not be sent. Without an epoch a late release might
// free a newer placement of the id, so such ones are left to the lease's end.
func (r *registration) keep(lists ...[]released) {
	for _, list := range lists {
		for _, item := range list {
			if item.epoch != 0 {
				r.releases.add(item)
			}
		}
	}
}

// deregister ends the session at pinboard, if there is one that has not been ended.
// Only to be called without live instances: their ids are placed elsewhere at once. The
// session is still known here, so that requests that are on their way are refused and
// not unknown. The error is an ErrNotDeregistered.
func (r *registration) deregister(ctx context.Context) error {
	r.mu.Lock()
	session := r.sessionID()
	if r.deregistered {
		session = ""
	}
	r.registered = false
	r.mu.Unlock()
	if session == "" {
		return nil
	}
	if err := r.postPersistently(ctx, "deregister", wire.PathDeregister, wire.Deregister{SessionID: session}); err != nil {
		return fmt.Errorf("%w (clientId %s at %s): %w", ErrNotDeregistered, r.clientID, r.opts.AdvertiseURL, err)
	}
	r.log.Info("deregistered from pinboard")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deregistered = true
	return nil
}

// postPersistently makes a few attempts, until pinboard answers 200. The error is the
// last one's.
func (r *registration) postPersistently(ctx context.Context, operation, path string, body any) error {
	var status int
	var failure error
	for attempt := 1; ; attempt++ {
		a, err := r.client.post(ctx, path, body)
		if err == nil && a.status == http.StatusOK {
			return nil
		}
		status, failure = 0, err
		if err == nil {
			status = a.status
		}
		if attempt == releaseAttempts || !pause(ctx, time.Duration(attempt)*attemptPause) {
			break
		}
	}
	r.metrics.controlFailed(operation, "exhausted")
	r.log.Warn("call failed after some attempts; pinboard frees the placements when the lease lapses",
		zap.String("path", path), zap.Int("status", status), zap.Error(failure))
	if failure == nil {
		failure = fmt.Errorf("%s was answered with status %d", path, status)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", failure, ctx.Err())
	}
	return failure
}

// pause waits, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

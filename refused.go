package pinboard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// maxDetail is the longest error body of a worker that is looked into, in
// bytes. What pinboard recognises is much shorter.
const maxDetail = 4 << 10

// refusedInBand reports whether the worker would not activate the id, so that
// it may be placed elsewhere, or has been (protocol §5).
func (e *exchange) refusedInBand(a *attempt) bool {
	switch a.resp.Status {
	case http.StatusServiceUnavailable:
	case http.StatusForbidden:
		// It may have another session by now, or be another process.
		return a.recalled && (e.bare(a) || a.detail() == wire.DetailInvalidAttestation)
	default:
		return false
	}
	switch a.resp.Header.Get(wire.HeaderRefusal) {
	case wire.RefusalLeaseUnhealthy, wire.RefusalExpired, wire.RefusalDraining, wire.RefusalClosing,
		wire.RefusalStaleEpoch, wire.RefusalReleasedEpoch, wire.RefusalCapacity, wire.RefusalActivationQueue:
		return true
	}
	switch a.detail() {
	case wire.DetailHostDraining:
		return e.ownerDrain(a).Draining
	case wire.DetailLeaseExpired:
		return a.recalled || e.drainIsOver(a)
	case wire.DetailStaleEpoch, wire.DetailReleasedEpoch, wire.DetailClosing, wire.DetailWoundDown:
		return true // it serves the id no more, or not by this epoch
	}
	return false
}

// bare reports whether the answer is an upgrade's 403 without a word, which is
// a Python worker's for an attestation that is not its own as well as any application's.
func (e *exchange) bare(a *attempt) bool {
	return e.upgrade && a.resp.Status == http.StatusForbidden && a.resp.Length <= 0
}

// drainIsOver reports whether the owner is past the deadline of its drain.
func (e *exchange) drainIsOver(a *attempt) bool {
	drain := e.ownerDrain(a)
	return drain.Draining && drain.Deadline && drain.Left <= 0
}

// ownerDrain asks whether the owner drains, on its own or by an operator.
// Unknown is no.
func (e *exchange) ownerDrain(a *attempt) store.Drain {
	ctx, cancel := context.WithTimeout(&a.flow, storeTimeout)
	defer cancel()
	s, err := e.x.p.store.Session(ctx, a.lease.ID)
	if err != nil {
		return store.Drain{}
	}
	s.Drain.Draining = s.Drain.Draining || s.Draining
	return s.Drain
}

// detail returns the detail of an error answer that is a JSON object with
// nothing else in it, else "". The answer can still be relayed, unless a fault
// is noted.
func (a *attempt) detail() string {
	kind, _, _ := strings.Cut(a.resp.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "application/json") || a.resp.Length > maxDetail {
		return ""
	}
	late := newStall(a.patience, func() { a.flow.cancel(errAnswerLate) })
	late.watch()
	for a.aheadErr == nil && len(a.ahead) <= maxDetail {
		if !a.resp.Ready() {
			a.flow.follow() // the client may leave meanwhile
		}
		var piece []byte
		piece, a.aheadErr = a.resp.Next()
		a.ahead = append(a.ahead, piece...)
	}
	late.stop()
	if a.aheadErr != nil && a.aheadErr != io.EOF {
		a.fault = a.aheadErr
		return ""
	}
	var object map[string]json.RawMessage
	var detail string
	if json.Unmarshal(a.ahead, &object) != nil || len(object) != 1 || json.Unmarshal(object["detail"], &detail) != nil {
		return ""
	}
	return detail
}

// sendElsewhere looks the row up again, has the id placed on another worker if
// the refusal gave the placement up, and sends the request there. If there is
// no other place, the refusal itself is the answer, and waits says whether there
// may be one in a moment. The error is a refusal for the client; all attempts
// are closed then.
func (e *exchange) sendElsewhere(first *attempt) (a *attempt, waits bool, err error) {
	again := e.call.ask
	again.fresh = true
	if e.givesUp(first) {
		again.refused = first.refusal()
	}
	if e.body != nil && !e.body.Suspend() {
		if again.refused != nil {
			e.free(again.refused, first.lease.Hostname)
		}
		return first, false, nil
	}
	rt, err := e.lookUp(again)
	if err != nil {
		e.tell("refused by the owner, and no other worker", first.lease, zap.Error(err))
		return first, isMoving(err), nil
	}
	if rt.same(first.route) {
		return first, true, nil // an instance may still live there: its row stays
	}
	e.x.p.counters.retries.add(first.marker(), 1)
	e.tell("refused by the owner, sent again", first.lease, zap.String("next", rt.lease.ClientID))
	first.close()
	a, err = e.send(rt)
	return a, false, err
}

// errRouteOver: a request was not sent because too much time has passed since its
// route was found.
var errRouteOver = moving("the owner was looked up too long ago", time.Second)

// deliver sends the request to the owner. A route that was recalled may be out of
// date: where nothing was sent by it, the store is asked, and the request goes
// where the id is now. The error is a refusal for the client.
func (e *exchange) deliver(rt route) (*attempt, error) {
	a, err := e.send(rt)
	if err == nil || !isMoving(err) || !rt.recalled && !errors.Is(err, errRouteOver) {
		return a, err
	}
	if e.body != nil && !e.body.Suspend() {
		return nil, err
	}
	again := e.call.ask
	again.fresh = true
	next, lookUp := e.lookUp(again)
	switch {
	case e.r.Context().Err() != nil:
		return nil, e.gone()
	case lookUp != nil:
		return nil, lookUp
	case next.same(rt) && rt.recalled && !rt.over():
		return nil, err
	}
	return e.send(next)
}

// givesUp reports whether an in-band refusal gives the placement up. One
// without a marker does if the worker drains; and a worker that is past
// its drain's deadline has nothing left that lives.
func (e *exchange) givesUp(a *attempt) bool {
	switch reason := a.resp.Header.Get(wire.HeaderRefusal); reason {
	case "":
		detail := a.detail()
		return detail == wire.DetailHostDraining || detail == wire.DetailLeaseExpired && e.drainIsOver(a)
	case wire.RefusalExpired:
		return e.drainIsOver(a)
	default:
		return wire.GivesUp(reason)
	}
}

// refusal names the placement that was refused.
func (a *attempt) refusal() *store.Refused {
	return &store.Refused{SessionID: a.lease.ID, ClientID: a.lease.ClientID, Epoch: a.epoch}
}

// free gives up a row that its owner, bound under that host name, refuses to
// serve; the next request places the id.
func (e *exchange) free(refused *store.Refused, hostname string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.r.Context()), storeTimeout)
	defer cancel()
	inst := e.call.under(hostname)
	e.x.p.placer.routes.drop(inst)
	release := wire.Release{SessionID: refused.SessionID, Namespace: inst.namespace, ID: inst.id, Epoch: refused.Epoch}
	releases := []wire.Release{release}
	freed, err := e.x.p.store.Release(ctx, releases)
	if err != nil {
		e.x.p.log.Warn("a refused placement was not freed", zap.Error(err))
	}
	e.x.p.hooks.released(releases, freed, "refused", func(string) string { return refused.ClientID })
}

package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// heartbeat renews the session, and obeys what the answer says (protocol §2).
func (r *registration) heartbeat(ctx context.Context) {
	acks := slices.Sorted(maps.Keys(r.acks))
	body := &wire.Heartbeat{
		SessionID: r.sessionID(), Headroom: r.headroom.figure(ctx), Draining: r.draining.Load(), Acks: acks,
	}
	body.Challenge, body.ChallengeValue = r.newChallenge()
	sent := r.clock() // not before: Options.Headroom may take its time
	a, err := r.client.post(ctx, wire.PathHeartbeat, body)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		r.metrics.controlFailed("heartbeat", "transport")
		r.log.Warn("heartbeat failed", zap.Error(err))
	case a.status == http.StatusOK:
		r.acked(ctx, sent, acks, a)
	case a.status == http.StatusConflict && a.flag("superseded"):
		r.displaced(a)
	case a.flag("reregister"):
		r.lost()
		r.register(ctx)
	case a.status == http.StatusUnauthorized:
		r.metrics.controlFailed("heartbeat", "unauthorized")
		r.log.Error("heartbeat rejected with 401: check the deployment token (PINBOARD_TOKEN)")
	default:
		r.metrics.controlFailed("heartbeat", "rejected")
		r.log.Warn("heartbeat rejected", zap.Int("status", a.status), zap.String("error", a.why()))
	}
}

func (r *registration) acked(ctx context.Context, sent instant, acks []string, a *answer) {
	ttl, ok := a.expiresIn()
	if !ok {
		r.metrics.controlFailed("heartbeat", "malformed")
		r.log.Error("heartbeat answered without a lease time")
		return
	}
	r.lease.renewed(sent, ttl)
	r.broadcast()
	r.applyDrain(a)
	for _, id := range acks {
		delete(r.acks, id)
	}
	for _, id := range r.applyMessages(a) {
		r.acks[id] = struct{}{}
	}
	r.flushLater(ctx)
}

// displaced ends the registration for good: a worker of a higher epoch owns the
// namespaces now, and trying again can't succeed. What lives here is released.
func (r *registration) displaced(a *answer) {
	r.superseded.Store(true)
	r.mu.Lock()
	r.registered = false
	r.mu.Unlock()
	r.broadcast()
	r.lease.giveUp(ErrSuperseded)
	r.metrics.controlFailed("heartbeat", "superseded")
	r.log.Error("superseded by a worker of a higher epoch: stopping for good", zap.String("error", a.why()))
	r.dir.refuseAll(errSuperseded)
}

// applyMessages applies the control messages in order and returns the ids to
// ack: those before the first one that could not be applied. Pinboard delivers
// the rest again, and applying a message twice does no harm.
func (r *registration) applyMessages(a *answer) (confirmed []string) {
	if raw, ok := a.fields["messages"]; !ok || string(raw) == "null" {
		return nil
	}
	list, ok := get[[]json.RawMessage](a, "messages")
	if !ok {
		r.metrics.controlFailed("control_message", "malformed_batch")
		r.log.Error("heartbeat answered with malformed messages")
		return nil
	}
	confirming := true
	for _, raw := range list {
		var message map[string]json.RawMessage
		if json.Unmarshal(raw, &message) != nil || message == nil {
			r.metrics.controlFailed("control_message", "malformed")
			r.log.Error("heartbeat answered with a malformed control message")
			continue
		}
		if err := r.applyMessage(message); err != nil {
			confirming = false
			r.metrics.controlFailed("control_message", "callback")
			r.log.Error("control message not applied", zap.Error(err))
		}
		var id string
		if confirming && json.Unmarshal(message["msgId"], &id) == nil && id != "" {
			confirmed = append(confirmed, id)
		}
	}
	return confirmed
}

func (r *registration) applyMessage(message map[string]json.RawMessage) error {
	var kind, id, namespace string
	if json.Unmarshal(message["type"], &kind) != nil || kind != wire.MessageWindDown {
		return errors.New("unknown type of message")
	}
	raw, ok := message["deadline"]
	if !ok {
		return errors.New("wind_down without a deadline (null revokes)")
	}
	var seconds *float64
	if json.Unmarshal(raw, &seconds) != nil {
		return errors.New("wind_down with a deadline that is neither a number nor null")
	}
	if string(message["id"]) == "null" || json.Unmarshal(message["id"], &id) != nil {
		return errors.New("wind_down without an id")
	}
	known := r.namespaces()
	if raw, ok := message["ns"]; !ok || string(raw) == "null" {
		if len(known) != 1 {
			return errors.New("wind_down without a namespace, and there are several")
		}
		namespace = known[0]
	} else if json.Unmarshal(raw, &namespace) != nil || !slices.Contains(known, namespace) {
		return fmt.Errorf("wind_down for an unknown namespace %.140q", raw)
	}
	k := key{namespace, id}
	if seconds == nil {
		r.dir.resume(k)
	} else {
		r.dir.windDown(k, boundedDuration(*seconds))
	}
	return nil
}

// deadlineMoved is how far an operator's deadline may drift between two
// answers without being a new one: it comes in seconds left.
const deadlineMoved = time.Second

// applyDrain obeys the operator's drain in an answer, if it changed.
func (r *registration) applyDrain(a *answer) {
	draining, ok := get[bool](a, "draining")
	if !ok {
		return
	}
	next := drain{on: draining}
	if raw, there := a.fields["drainDeadline"]; draining && there && string(raw) != "null" {
		seconds, ok := get[float64](a, "drainDeadline")
		if ok && seconds >= 0 {
			next.hasDeadline, next.deadline = true, r.clock().mono+boundedDuration(seconds)
		} else {
			r.metrics.controlFailed("server_draining", "malformed_deadline")
			r.log.Error("pinboard answered with a malformed drainDeadline")
		}
	}
	known := r.echo.deadline
	if r.echo.hasDeadline { // one that has passed comes with 0 s left
		known = max(known, r.clock().mono)
	}
	if moved := next.deadline - known; next.on == r.echo.on &&
		next.hasDeadline == r.echo.hasDeadline && moved.Abs() <= deadlineMoved {
		return
	}
	r.echo = next
	switch {
	case !draining:
		r.log.Info("operator's drain revoked")
	case next.hasDeadline:
		r.log.Info("operator's drain: refusing new instances", zap.Duration("deadline", next.deadline-r.clock().mono))
	default:
		r.log.Info("operator's drain: refusing new instances")
	}
	r.dir.setDrain(operatorsDrain, next)
}

package pinboard

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// refusal is an answer of pinboard's own that is not a success. It is an error,
// so that it can travel up to the one place that writes it.
type refusal struct {
	status int
	// message is for the caller: no internals, no secrets.
	message string
	// retryAfter is rounded up to whole seconds, at least 1, on every 503 and
	// 429.
	retryAfter time.Duration
	// challenge asks for a credential (WWW-Authenticate) with a 401.
	challenge bool
	// reregister tells a worker to register anew, with a 409; superseded to
	// stop for good.
	reregister, superseded bool
	// moving: the id has no owner that serves it right now, no application has
	// seen the request, and it may be held (Options.PlacementHold).
	moving bool
	// idle is how long looking again is pointless: what is left of a
	// quarantine.
	idle time.Duration
	// reason and limit are what it counts as: see why.
	reason reason
	limit  limitName
}

func (r *refusal) Error() string { return r.message }

func refuse(status int, message string) *refusal {
	return &refusal{status: status, message: message}
}

// notNow is a 503: what was asked for may be possible in a while.
func notNow(message string, retryAfter time.Duration) *refusal {
	return &refusal{status: http.StatusServiceUnavailable, message: message, retryAfter: retryAfter}
}

// moving is a notNow for an id that may be served in a moment.
func moving(message string, retryAfter time.Duration) *refusal {
	ref := notNow(message, retryAfter)
	ref.moving = true
	return ref
}

// isMoving reports whether an error is a refusal that a request may be held for.
func isMoving(err error) bool {
	ref, ok := errors.AsType[*refusal](err)
	return ok && ref.moving
}

var errStoreAway = notNow("the store does not answer", time.Second).because(reasonStore)

// notIdentified answers a caller of whom the passport could not find out who it
// is: with a good credential too that may be so for a while.
func (p *Pinboard) notIdentified(err error) error {
	p.log.Warn("caller not identified", zap.Error(err))
	return notNow("the credential could not be checked", time.Second).because(reasonUnchecked)
}

// asRefusal maps any error to the answer for it. What is not a refusal is the
// store's failing, or a fault of ours: the caller learns only to try again.
func asRefusal(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	return errStoreAway
}

// writeRefusal answers with the error, and logs what the answer does not tell.
func (p *Pinboard) writeRefusal(w http.ResponseWriter, r *http.Request, err error) {
	ref := asRefusal(err)
	if ref == errStoreAway && r.Context().Err() == nil && !errors.Is(err, errStoreAway) && !p.unequal.says(p.log, err) {
		p.log.Warn("request not served", zap.String("method", r.Method), zap.Error(err))
	}
	if ref.limit != limitNone {
		p.counters.limits.add(ref.limit, 1)
	}
	h := w.Header()
	if ref.challenge {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if ref.status == http.StatusServiceUnavailable || ref.status == http.StatusTooManyRequests {
		h.Set("Retry-After", wholeSeconds(ref.retryAfter))
	}
	jsonbody.Write(w, ref.status, wire.Error{Error: ref.message, Reregister: ref.reregister, Superseded: ref.superseded})
}

// wholeSeconds rounds up, to at least 1 (protocol, head).
func wholeSeconds(d time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))
}

package worker

import (
	"net/http"
	"time"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// refusal is an answer of the worker's own that is not a success.
type refusal struct {
	status int
	detail string
	// reason is the marker in Pinned-Refusal: the instance never saw the
	// request, so that pinboard may send it again (protocol §5). "" for none.
	reason string
}

// refuse is a 503 for a request that the instance never saw.
func refuse(reason, detail string) *refusal {
	return &refusal{status: http.StatusServiceUnavailable, detail: detail, reason: reason}
}

var (
	refuseAttestation = &refusal{status: http.StatusForbidden, detail: wire.DetailInvalidAttestation}
	refuseProbe       = &refusal{status: http.StatusForbidden, detail: "invalid proxy secret"}
	refuseChallenge   = &refusal{status: http.StatusNotFound, detail: "unknown challenge"}
	refusePath        = &refusal{status: http.StatusNotFound, detail: "not found"}
	refuseNamespace   = &refusal{status: http.StatusNotFound, detail: "unknown namespace"}
	refuseMethod      = &refusal{status: http.StatusMethodNotAllowed, detail: "method not allowed"}
	refuseEpoch       = &refusal{status: http.StatusBadRequest, detail: "malformed placement epoch"}

	refuseExpired = refuse(wire.RefusalExpired, wire.DetailLeaseExpired)
	// In local mode, where there is no lease.
	refuseNotStarted = refuse(wire.RefusalExpired, "the worker has not started: Start, Serve or ListenAndServe does that")
	refuseShutDown   = refuse(wire.RefusalExpired, "the worker was shut down")
	refuseUnhealthy  = refuse(wire.RefusalLeaseUnhealthy, "lease unhealthy; refusing new activations")
	refuseDraining   = refuse(wire.RefusalDraining, wire.DetailHostDraining)
	refuseCapacity   = refuse(wire.RefusalCapacity, "instance capacity reached; retry")
	refuseQueue      = refuse(wire.RefusalActivationQueue, "activation queue full; retry")
	refuseClosing    = refuse(wire.RefusalClosing, "instance closing; retry")
	// It was sent to a session that has ended, with all of its placements.
	refuseSession = refuse(wire.RefusalStaleEpoch, "the worker has registered anew; retry")

	// The instance saw the request of these: only its sender knows whether it
	// may be sent again.
	refuseAborted = &refusal{status: http.StatusServiceUnavailable, detail: "instance aborted"}
	// Not wire.DetailLeaseExpired, which pinboard may take for a request that
	// was never served.
	refuseLate = &refusal{status: http.StatusServiceUnavailable, detail: "the instance was lost while it served the request"}

	// The handler panicked. Not a lost connection, after which pinboard sends a GET again.
	refuseInternal = &refusal{status: http.StatusInternalServerError, detail: "internal error"}
	// The connection can't be handed over.
	refuseSwitch = &refusal{status: http.StatusInternalServerError, detail: "WebSockets are not possible here"}

	// The constructor failed, or panicked. The next request tries again.
	refuseFailed   = &refusal{status: http.StatusServiceUnavailable, detail: "activation failed; retry"}
	refusePanicked = &refusal{status: http.StatusInternalServerError, detail: "activation failed"}
	// Nobody is left to read it.
	refuseGone = &refusal{status: http.StatusServiceUnavailable, detail: "the client went away"}
)

// restTime is how long the rest of a refused request's body is waited for, to use the
// connection again.
const restTime = 50 * time.Millisecond

// leaveRest is called before the answer to a request whose body nobody reads. The
// server reads the rest of it before it sends the answer, and pinboard, which may send
// the request elsewhere, has the body from a client that may be slow.
func leaveRest(rw http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(rw).SetReadDeadline(time.Now().Add(restTime)) // a host's that can't is left to it
	}
}

// write answers with the refusal.
func (ref *refusal) write(w http.ResponseWriter) {
	h := w.Header()
	if ref.status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	if ref.reason != "" {
		h.Set(wire.HeaderRefusal, ref.reason)
	}
	jsonbody.Write(w, ref.status, wire.Detail{Detail: ref.detail})
}

package pinboard

import (
	"errors"
	"net/http"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// What is counted is of few kinds, which clients can't add to. Their names are
// label values of metrics and values in the access log: to change one breaks
// somebody's dashboard.

// requestKind is what a request of the data plane is.
type requestKind uint8

const (
	kindHTTP requestKind = iota
	// kindSSE: its answer is a stream of server-sent events.
	kindSSE
	kindWebSocket
	// kindCluster: an instance calls another one (protocol §6).
	kindCluster
)

var requestKinds = []string{"http", "sse", "websocket", "cluster"}

func (k requestKind) String() string { return requestKinds[k] }

// kindOf is what a request seems to be before it is let in.
func kindOf(r *http.Request) requestKind {
	switch {
	case isClusterCall(r.Header):
		return kindCluster
	case wantsWebSocket(r):
		return kindWebSocket
	}
	return kindHTTP
}

// found is how a look-up ended that asked the store.
type found uint8

const (
	foundOwned found = iota
	foundPlaced
	foundQuarantined
	foundNoWorker
	foundUnknown
	foundOwnerDown
	foundLimited
	foundFailed
	foundLeft
	foundOther
)

var founds = []string{
	"owned", "placed", "quarantined", "no_worker", "unknown_namespace", "owner_down", "limited", "store_failed", "client_left", "other",
}

// foundOf sorts a look-up's end. left says that its caller has left.
func foundOf(rt *route, err error, left bool) found {
	switch {
	case err == nil && rt.placed:
		return foundPlaced
	case err == nil:
		return foundOwned
	case left:
		return foundLeft
	}
	switch asRefusal(err).why() {
	case reasonQuarantine, reasonRecovering:
		return foundQuarantined
	case reasonNoWorker:
		return foundNoWorker
	case reasonUnknown:
		return foundUnknown
	case reasonOwnerDown:
		return foundOwnerDown
	case reasonLimit:
		return foundLimited
	case reasonStore:
		return foundFailed
	}
	return foundOther
}

// cause is why an id was placed.
type cause uint8

const (
	causeNew cause = iota
	causeFailover
	causeRefused
)

var causes = []string{"new", "failover", "refused"}

func causeOf(why store.Why) cause {
	switch why.Cause {
	case store.Failover:
		return causeFailover
	case store.AfterRefusal:
		return causeRefused
	}
	return causeNew
}

// marker is what a worker said when it refused an id (protocol §5).
type marker uint8

const (
	// markerNone: its detail said it, as the Python client's does.
	markerNone marker = iota
	// markerNotReady: it does not know the attestation's session.
	markerNotReady
	markerFirst // of markers, in their order
)

var markers = []string{
	"unmarked", "invalid-attestation",
	wire.RefusalLeaseUnhealthy, wire.RefusalExpired, wire.RefusalDraining, wire.RefusalClosing,
	wire.RefusalStaleEpoch, wire.RefusalReleasedEpoch, wire.RefusalCapacity, wire.RefusalActivationQueue,
}

func (a *attempt) marker() marker {
	if a.resp.Status == http.StatusForbidden {
		return markerNotReady
	}
	text := a.resp.Header.Get(wire.HeaderRefusal)
	for i, known := range markers[markerFirst:] {
		if text == known {
			return markerFirst + marker(i)
		}
	}
	return markerNone
}

// reason is why pinboard answered in place of a worker.
type reason uint8

const (
	reasonNone reason = iota // it did not
	reasonBadRequest
	reasonUnauthenticated
	reasonForbidden
	reasonUnknown
	reasonLimit
	reasonClientGone
	reasonQuarantine
	// reasonRecovering: the store was away (comeback).
	reasonRecovering
	reasonNoWorker
	reasonOwnerDown
	reasonOwnerGone
	reasonOwnerNotReady
	reasonOwnerLost
	reasonOwnerLate
	// reasonOwnerRefused: a worker's refusal was passed on, for want of another.
	reasonOwnerRefused
	reasonStore
	// reasonUnchecked: the passport could not say who is calling.
	reasonUnchecked
	reasonStopping
	reasonOther
)

var reasonNames = []string{
	"", "bad_request", "unauthenticated", "forbidden", "unknown_namespace", "limit", "client_gone", "quarantine", "recovering",
	"no_worker", "owner_down", "owner_gone", "owner_not_ready", "owner_lost", "owner_late", "owner_refused", "store",
	"identity_unchecked", "stopping", "other",
}

func (r reason) String() string { return reasonNames[r] }

// because gives a refusal a reason that its status does not tell.
func (r *refusal) because(why reason) *refusal {
	r.reason = why
	return r
}

// limited says which of Limits a refusal is about.
func (r *refusal) limited(by limitName) *refusal {
	r.limit = by
	return r
}

// why returns the reason.
func (r *refusal) why() reason {
	switch {
	case r.reason != reasonNone:
		return r.reason
	case r.limit != limitNone:
		return reasonLimit
	}
	switch r.status {
	case http.StatusUnauthorized:
		return reasonUnauthenticated
	case http.StatusForbidden:
		return reasonForbidden
	case http.StatusNotFound:
		return reasonUnknown
	case statusClientGone:
		return reasonClientGone
	case http.StatusBadGateway:
		return reasonOwnerLost
	case http.StatusGatewayTimeout:
		return reasonOwnerLate
	case http.StatusBadRequest, http.StatusNotImplemented, http.StatusLoopDetected:
		return reasonBadRequest
	}
	return reasonOther
}

// cut is why an answer or a WebSocket ended before its end.
type cut uint8

const (
	cutNone cut = iota // it did not
	cutOwnerEnded
	cutStopping
	cutSilence
	// cutUnread: what was sent was not read for Limits.WritePause.
	cutUnread
	cutClient
	cutWorker
)

var cuts = []string{"", "owner_ended", "stopping", "silence", "unread", "client_left", "worker"}

func (c cut) String() string { return cuts[c] }

// limitName is one of Limits.
type limitName uint8

const (
	limitNone limitName = iota
	limitURL
	limitHeader
	limitBody
	limitBodyPause
	limitWritePause
	limitSilence
	limitRequests
	limitAddress
	limitID
	limitPlacements
	limitReplay
	limitHeld
	limitAnswer
	limitUpgrade
	limitInformational
	limitRegistrations
	limitProbes
	limitRegistryBytes
	limitInstances
)

var limitNames = []string{
	"", "url", "header", "body", "body_pause", "write_pause", "silence", "requests", "requests_per_address", "requests_per_id",
	"placements_per_address", "replay", "held", "answer_timeout", "upgrade_timeout", "informational", "registrations", "probes",
	"registry_bytes", "instances",
}

// probeOutcome is how asking a worker at its advertise URL ended.
type probeOutcome uint8

const (
	probePassed probeOutcome = iota
	probeOtherProcess
	probeNotAllowed
	probeUnreachable
	probeBadAnswer
)

var probeOutcomes = []string{"passed", "other_process", "not_allowed", "unreachable", "bad_answer"}

func probeOutcomeOf(err error) probeOutcome {
	switch {
	case err == nil:
		return probePassed
	case errors.Is(err, errOtherProcess):
		return probeOtherProcess
	case errors.Is(err, errOutsideRules):
		return probeNotAllowed
	case errors.Is(err, errUnreachable):
		return probeUnreachable
	}
	return probeBadAnswer
}

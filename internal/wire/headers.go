package wire

import "strings"

// Header names in their canonical form (protocol §§3, 5, 6).
const (
	// HeaderAttestation carries the JWS that says who is calling.
	HeaderAttestation = "Pinboard-Attestation"
	// HeaderEpoch carries the row's placement epoch in decimal digits.
	HeaderEpoch = "Pinboard-Epoch"
	// HeaderProxySecret authorises probes; the data plane never carries it.
	HeaderProxySecret = "Pinboard-Proxy-Secret"
	// HeaderRefusal marks a worker's answer as a refusal to activate an id.
	HeaderRefusal = "Pinned-Refusal"
	// HeaderFrom names the calling instance of a cluster call: /<ns>/<id>.
	HeaderFrom = "Pinboard-From"
	// HeaderSession names the session that makes a cluster call.
	HeaderSession = "Pinboard-Session"
	// HeaderSessionSecret proves the session of a cluster call.
	HeaderSessionSecret = "Pinboard-Session-Secret" // a header's name
	// HeaderDepth counts the calls that led to a cluster call.
	HeaderDepth = "Pinboard-Subrequest-Depth"
)

// Reasons a worker gives in HeaderRefusal (protocol §5).
const (
	RefusalLeaseUnhealthy  = "lease-unhealthy"
	RefusalExpired         = "expired"
	RefusalDraining        = "draining"
	RefusalClosing         = "closing"
	RefusalStaleEpoch      = "stale-epoch"
	RefusalReleasedEpoch   = "released-epoch"
	RefusalCapacity        = "capacity"
	RefusalActivationQueue = "activation-queue"
)

// GivesUp reports whether a refusal with this reason gives the placement up:
// pinboard frees the row, and the worker never serves that epoch of it again.
// After any other refusal, an unknown one too, the row stays, because an
// instance may still live there: pinboard only looks it up again.
func GivesUp(reason string) bool {
	switch reason {
	case RefusalLeaseUnhealthy, RefusalDraining, RefusalCapacity, RefusalActivationQueue, RefusalReleasedEpoch:
		return true
	}
	return false
}

// Details of a worker's errors that pinboard recognises (protocol §5).
const (
	DetailInvalidAttestation = "invalid attestation"
	DetailHostDraining       = "host draining; retry"
	DetailLeaseExpired       = "lease expired; not serving"
	DetailStaleEpoch         = "stale placement epoch; retry"
	DetailReleasedEpoch      = "released placement epoch; retry"
	DetailClosing            = "instance closing; retry"
	DetailWoundDown          = "instance past its wind-down deadline; retry"
)

// Paths on a worker, below its advertise URL (protocol §3).
const (
	PathChallenge = "/_pinned/challenge"
	PathStats     = "/_pinned/stats"
)

// Paths of the registry, below pinboard's base URL (protocol §2).
const (
	PathRegister   = "/registry/register"
	PathHeartbeat  = "/registry/heartbeat"
	PathRelease    = "/registry/release"
	PathDeregister = "/registry/deregister"
)

// MaxDepth is the highest depth of a cluster call (protocol §6).
const MaxDepth = 50

// Reserved reports whether a header or trailer name belongs to pinboard: it
// starts with "pinboard-" or "pinned-" in any case, "_" and "." counting as
// "-" because servers and gateways fold them (protocol §5).
func Reserved(name string) bool {
	if name == "" || name[0] != 'p' && name[0] != 'P' {
		return false // nearly always
	}
	return hasPrefixFold(name, "pinboard-") || hasPrefixFold(name, "pinned-")
}

func hasPrefixFold(name, prefix string) bool {
	if len(name) < len(prefix) {
		return false
	}
	head, last := name[:len(prefix)-1], name[len(prefix)-1]
	return (last == '-' || last == '_' || last == '.') && strings.EqualFold(head, prefix[:len(prefix)-1])
}

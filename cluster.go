package pinboard

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Refusals of cluster calls (protocol §6).
var (
	errSessionSecret  = refuse(http.StatusForbidden, "invalid session secret")
	errCallerMismatch = refuse(http.StatusForbidden, "caller placement mismatch")
	errClusterTwice   = refuse(http.StatusForbidden, "a header of the cluster call is there twice")
	errDepth          = refuse(http.StatusBadRequest, "malformed "+wire.HeaderDepth)
	errTooDeep        = refuse(http.StatusLoopDetected, "too many calls led to this one")
)

// isClusterCall reports whether a request claims to come from an instance. Only
// the exact names count; spellings that other servers would fold into them are
// dropped with the other reserved headers.
func isClusterCall(h http.Header) bool {
	for _, name := range []string{wire.HeaderFrom, wire.HeaderSession, wire.HeaderSessionSecret} {
		if _, ok := h[name]; ok {
			return true
		}
	}
	return false
}

// clusterCaller checks the headers of a cluster call and returns who is
// calling, and the session that the caller lives on.
func (x *proxy) clusterCaller(ctx context.Context, h http.Header) (attest.Claims, *lease, error) {
	for _, name := range []string{wire.HeaderFrom, wire.HeaderSession, wire.HeaderSessionSecret, wire.HeaderDepth} {
		if len(h[name]) > 1 {
			return attest.Claims{}, nil, errClusterTwice
		}
	}
	id := h.Get(wire.HeaderSession)
	if id == "" {
		return attest.Claims{}, nil, errSessionSecret
	}
	session, err := x.p.leases.get(ctx, id)
	switch {
	case errors.Is(err, store.ErrNoSession):
		return attest.Claims{}, nil, errSessionSecret
	case err != nil:
		return attest.Claims{}, nil, err
	case !session.Secret.Equal(wire.NewSecret(h.Get(wire.HeaderSessionSecret))):
		return attest.Claims{}, nil, errSessionSecret
	}
	depth, err := clusterDepth(h)
	if err != nil {
		return attest.Claims{}, nil, err
	}
	from := h.Get(wire.HeaderFrom)
	if err := x.livesOn(ctx, from, session); err != nil {
		return attest.Claims{}, nil, err
	}
	return attest.Claims{Caller: from, Depth: depth}, session, nil
}

// livesOn returns nil if the instance "/<ns>/<id>" is placed on the session.
func (x *proxy) livesOn(ctx context.Context, from string, session *lease) error {
	slash := strings.LastIndexByte(from, '/')
	if slash < 0 {
		return errCallerMismatch
	}
	namespace, id := from[:slash], from[slash+1:]
	if wire.CheckNamespace(namespace) != nil || wire.CheckID(id) != nil {
		return errCallerMismatch
	}
	caller := instance{store.Bind(session.Hostname, namespace), id}
	if x.p.placer.livesOn(ctx, caller, session) {
		return nil
	}
	var row store.Row
	err := x.p.placer.gate.do(ctx, func(ctx context.Context) (err error) {
		row, err = x.p.store.Lookup(ctx, caller.namespace, id)
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotPlaced):
		return errCallerMismatch
	case err != nil:
		// A client's request would be sent to the caller now, so the caller may call.
		if known := x.p.placer.outlasts(caller); ctx.Err() == nil && known != nil && known.lease.ID == session.ID {
			return nil
		}
		return err
	case row.SessionID != session.ID:
		return errCallerMismatch
	}
	return nil
}

// clusterDepth reads how many calls led to this one, 1 if it is not said.
func clusterDepth(h http.Header) (int, error) {
	if _, ok := h[wire.HeaderDepth]; !ok {
		return 1, nil
	}
	digits := h.Get(wire.HeaderDepth)
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, errDepth
	}
	depth, err := strconv.Atoi(digits)
	if err != nil || depth > wire.MaxDepth { // the error is an overflow
		return 0, errTooDeep
	}
	return depth, nil
}

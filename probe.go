package pinboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/pinboard-go/pinboard/internal/quiet"
	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	// probeTime bounds a probe, from the look-up of the host's name to the end
	// of the answer (protocol §2).
	probeTime = 2 * time.Second
	// maxProbeAnswer and maxProbeHeader bound what is read of the answer, in
	// bytes: who answers is not known yet.
	maxProbeAnswer = 4 << 10
	maxProbeHeader = 16 << 10
	// probeBuffer is the size of a connection's buffers, in bytes. Many probes
	// may hang at once.
	probeBuffer = 2 << 10
)

var (
	errOtherProcess = refuse(http.StatusConflict, "another process answers at this advertise URL")
	errOutsideRules = refuse(http.StatusForbidden, "the advertise URL's host has an address outside the credential's claims")
	errUnreachable  = notNow("the advertise URL does not answer", time.Second)
)

// prober asks workers whether an advertise URL leads to them (protocol §2).
type prober struct{ transport *http.Transport }

// probe is one such question.
type probe struct {
	url    string // normalised
	secret wire.Secret
	// challengeValue is what only the worker itself can answer challenge with.
	challengeValue wire.Secret
	challenge      string
	// rules and pinned say which addresses may be dialled; pinned is "" until
	// one has answered the registration's probe.
	rules  []string
	pinned string
}

// newProber makes probes like the given transport, which guards the addresses
// that are dialled.
func newProber(transport *http.Transport) *prober {
	t := transport.Clone()
	// A new connection each time: a kept one would prove that the process was
	// there, not that the URL leads to it now.
	t.DisableKeepAlives = true
	t.MaxConnsPerHost = 0 // a probe that hangs delays no other
	t.MaxResponseHeaderBytes = maxProbeHeader
	t.ReadBufferSize, t.WriteBufferSize = probeBuffer, probeBuffer
	// The transport detaches a dial from the request that began it, so that
	// others could use the connection: these end with their probe.
	t.TLSHandshakeTimeout = probeTime
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, probeTime)
		defer cancel()
		if asking, ok := ctx.Value(askingKey{}).(context.Context); ok {
			defer context.AfterFunc(asking, cancel)()
		}
		return dial(ctx, network, addr)
	}
	return &prober{transport: t}
}

// askingKey is where a dial's context has the context of its probe.
type askingKey struct{}

// ask returns nil if the worker itself answered, and the address it answered
// from, "" if the connection has none. The errors are refusals, as a
// registration answers them.
func (p *prober) ask(ctx context.Context, q probe) (from string, err error) {
	ctx, cancel := context.WithTimeout(withBackend(ctx, q.rules, q.pinned), probeTime)
	defer cancel()
	ctx = context.WithValue(ctx, askingKey{}, ctx)
	target := q.url + wire.PathChallenge + "?challenge=" + url.QueryEscape(q.challenge)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return "", errUnreachable // it names the URL: not for the log
	}
	r.Header.Set(wire.HeaderProxySecret, q.secret.Reveal())
	tellProbed(ctx, r.Header)
	res, err := p.transport.RoundTrip(r) // follows no redirect
	if err != nil {
		return "", failedDial(ctx, err)
	}
	defer func() { _ = res.Body.Close() }()
	return dialledAddr(ctx), q.judge(res)
}

// failedDial is a 403 if no address of the name may be dialled. Where one may,
// it is a worker that does not answer yet.
func failedDial(ctx context.Context, err error) error {
	if !errors.Is(err, errAddrNotAllowed) {
		return unreachable(err)
	}
	if b := backendOf(ctx); b != nil && b.choice.Load() {
		return fmt.Errorf("%w: not at an address that is allowed", errUnreachable)
	}
	return errOutsideRules
}

func unreachable(err error) error { return fmt.Errorf("%w: %w", errUnreachable, quiet.Transport(err)) }

func (q probe) judge(res *http.Response) error {
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusForbidden, http.StatusNotFound: // another secret, another challenge
		return errOtherProcess
	default:
		return notNow(fmt.Sprintf("the advertise URL answers with status %d", res.StatusCode), time.Second)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxProbeAnswer+1))
	if err != nil {
		return unreachable(err)
	}
	var answer wire.ChallengeAnswer
	if len(body) > maxProbeAnswer || json.Unmarshal(body, &answer) != nil ||
		!q.challengeValue.Equal(wire.NewSecret(answer.Value)) {
		return errOtherProcess
	}
	return nil
}

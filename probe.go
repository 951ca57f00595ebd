package pinboard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/pinboard-go/pinboard/internal/upstream"
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
)

var (
	errOtherProcess = refuse(http.StatusConflict, "another process answers at this advertise URL")
	errOutsideRules = refuse(http.StatusForbidden, "the advertise URL's host has an address outside the credential's claims")
	errUnreachable  = notNow("the advertise URL does not answer", time.Second)
)

// prober asks workers whether an advertise URL leads to them (protocol §2), each
// time on a new connection: a kept one would prove that the process was there, not
// that the URL leads to it now.
type prober struct {
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	pool    *upstream.Pool
	within  time.Duration // probeTime
	telling time.Duration // statsTime
	metrics *metrics      // nil for none
}

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
	p := &prober{dial: transport.DialContext, within: probeTime, telling: statsTime}
	p.pool = upstream.New(upstream.Config{
		Dial:              func(ctx context.Context, network, addr string) (net.Conn, error) { return p.dial(ctx, network, addr) },
		TLS:               transport.TLSClientConfig,
		DisableKeepAlives: true, MaxHeaderBytes: maxProbeHeader,
	})
	return p
}

// get asks a worker by the rules for its backend; no redirect is followed. The
// secret goes with it, and further header lines.
func (p *prober) get(ctx context.Context, b *backend, advertised, target string, secret wire.Secret, fields []byte) (*upstream.Response, error) {
	fields, ok := upstream.AppendField(fields, wire.HeaderProxySecret, secret.Reveal())
	if !ok {
		return nil, errUnreachable // registrations have none such
	}
	origin := upstream.ParseOrigin(advertised)
	res, err := p.pool.Do(ctx, &upstream.Request{
		Origin: origin, Host: origin.Host, Method: http.MethodGet, Target: target, Fields: fields,
		Within: b.within, Allowed: b.reached,
	})
	if err != nil {
		return nil, failedDial(b, cmp.Or(ctx.Err(), err))
	}
	return res, nil
}

// pieces is a body: an upstream.Response.
type pieces interface{ Next() ([]byte, error) }

// read returns the body of an answer, up to a bound in bytes; tooLong says that
// there is more.
func read(res pieces, most int) (body []byte, tooLong bool, err error) {
	for {
		piece, err := res.Next()
		if len(body)+len(piece) > most {
			return nil, true, nil
		}
		body = append(body, piece...)
		switch {
		case err == io.EOF:
			return body, false, nil
		case err != nil:
			return nil, false, err
		}
	}
}

// ask returns nil if the worker itself answered, and the address it answered
// from, "" if the connection has none. The errors are refusals, as a
// registration answers them.
func (p *prober) ask(ctx context.Context, q probe) (from string, err error) {
	began := time.Now()
	defer func() { p.metrics.probed(began, err) }()
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	b := &backend{rules: q.rules, pinned: q.pinned}
	res, err := p.get(ctx, b, q.url, wire.PathChallenge+"?challenge="+url.QueryEscape(q.challenge), q.secret, legOf(ctx).inject(nil))
	if err != nil {
		return "", err
	}
	defer res.Close()
	return b.address(), q.judge(res.Status, res)
}

// failedDial is a 403 if no address of the name may be dialled. Where one may,
// it is a worker that does not answer yet.
func failedDial(b *backend, err error) error {
	if !errors.Is(err, errAddrNotAllowed) {
		return unreachable(err)
	}
	if b.choice.Load() {
		return fmt.Errorf("%w: not at an address that is allowed", errUnreachable)
	}
	return errOutsideRules
}

func unreachable(err error) error { return fmt.Errorf("%w: %w", errUnreachable, tellable(err)) }

func (q probe) judge(status int, res pieces) error {
	switch status {
	case http.StatusOK:
	case http.StatusForbidden, http.StatusNotFound: // another secret, another challenge
		return errOtherProcess
	default:
		return notNow(fmt.Sprintf("the advertise URL answers with status %d", status), time.Second)
	}
	body, tooLong, err := read(res, maxProbeAnswer)
	if err != nil {
		return unreachable(err)
	}
	var answer wire.ChallengeAnswer
	if tooLong || json.Unmarshal(body, &answer) != nil ||
		!q.challengeValue.Equal(wire.NewSecret(answer.Value)) {
		return errOtherProcess
	}
	return nil
}

package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/pinboard-go/pinboard/internal/quiet"
	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	// callTimeout bounds one call to pinboard, answer included. Pinboard
	// answers a heartbeat within it, whatever its probe does (protocol §2).
	callTimeout = 5 * time.Second
	// dialTimeout is shorter, so that a connection that does not come to be is
	// told from an answer that does not.
	dialTimeout = 4 * time.Second
	// maxAnswer bounds what is read of an answer: 100,000 duplicates fit in.
	maxAnswer = 32 << 20
	// maxErrorAnswer bounds what is read of an answer that is not a 200.
	maxErrorAnswer = 64 << 10
	// maxErrorText bounds what is logged of pinboard's own error text.
	maxErrorText = 300
)

// client makes the calls of protocol §2.
type client struct {
	base  string
	token wire.Secret
	http  *http.Client
	owned *http.Transport // closed with the worker; nil for the host's own
}

func newClient(opts *Options) *client {
	c := &client{base: opts.PinboardURL, token: wire.NewSecret(string(opts.Token))}
	transport := opts.Transport
	if transport == nil {
		c.owned = directTransport()
		transport = c.owned
	}
	c.http = &http.Client{
		Transport: transport,
		// A redirect would carry the token, and a registration the secret, to
		// wherever it points.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// directTransport ignores HTTP_PROXY: what is sent to pinboard is secret, and
// pinboard is near.
func directTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout: callTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     90 * time.Second,
		// A connection over HTTP/2 to a node that has frozen is closed before the call
		// is given up that waits there, else the next ones would wait there, too.
		HTTP2: &http.HTTP2Config{SendPingTimeout: callTimeout * 2 / 5, PingTimeout: callTimeout * 2 / 5},
	}
}

func (c *client) close() {
	if c.owned != nil {
		c.owned.CloseIdleConnections()
	}
}

// answer is what pinboard said. Its fields are read one by one and each wrong
// one is passed over: a worker keeps serving whatever a newer or broken
// control plane sends.
type answer struct {
	status     int
	retryAfter string
	fields     map[string]json.RawMessage // nil if the body is not an object
}

// post sends body to a path of the registry. The error is a transport's, or an
// answer's that is cut or too long; any whole answer is no error.
func (c *client) post(ctx context.Context, path string, body any) (*answer, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode the body for %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url(path), bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("make a request for %s: %w", path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.token.Reveal())
	res, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("call pinboard: %w", quiet.Transport(err))
	}
	defer res.Body.Close() // it was read
	limit := maxErrorAnswer
	if res.StatusCode == http.StatusOK {
		limit = maxAnswer
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", path, quiet.Transport(err))
	}
	if len(raw) > limit {
		return nil, fmt.Errorf("read the answer of %s: more than %d bytes", path, limit)
	}
	a := &answer{status: res.StatusCode, retryAfter: res.Header.Get("Retry-After")}
	if json.Unmarshal(raw, &a.fields) != nil {
		a.fields = nil
	}
	return a, nil
}

// url is where a path of the registry is. It is fit for a log: Options allow no user,
// password or query in it.
func (c *client) url(path string) string { return c.base + path }

// unreached reports whether a post failed because there was nothing to connect to.
func unreached(err error) bool {
	failed, ok := errors.AsType[*net.OpError](err)
	return ok && failed.Op == "dial"
}

// get reads one field, and reports whether it is there with the right type.
func get[T any](a *answer, name string) (value T, ok bool) {
	raw, found := a.fields[name]
	if !found || string(raw) == "null" || json.Unmarshal(raw, &value) != nil {
		var zero T
		return zero, false
	}
	return value, true
}

// flag reports whether a field is true.
func (a *answer) flag(name string) bool {
	set, ok := get[bool](a, name)
	return ok && set
}

// expiresIn returns the granted lease time.
func (a *answer) expiresIn() (time.Duration, bool) {
	ms, ok := get[float64](a, "expiresInMs")
	if !ok {
		return 0, false
	}
	return boundedDuration(ms / 1000), true
}

// why is the answer for a log: pinboard's own words, never a whole body, which
// a gateway in between may have filled with the request.
func (a *answer) why() string {
	text, _ := get[string](a, "error")
	return text[:min(len(text), maxErrorText)]
}

// elsewhere reports whether an answer to a registration is certainly not the registry's,
// which knows the path, and gives a reason for what it refuses. A base path too many
// leads to pinboard's data plane, where the registration is a request for an instance;
// one too few to whatever pinboard is mounted beside.
func (a *answer) elsewhere() bool {
	switch a.status {
	case http.StatusNotFound:
		return true
	case http.StatusUnauthorized, http.StatusForbidden:
		why := a.why()
		return why == "" || why == wire.SaidUnauthenticated || why == wire.SaidForbidden
	}
	return false
}

// boundedDuration converts seconds; what is out of any sensible range becomes
// its end, not an overflow.
func boundedDuration(seconds float64) time.Duration {
	const limit = 30 * 24 * 3600
	return time.Duration(min(max(seconds, -limit), limit) * float64(time.Second))
}

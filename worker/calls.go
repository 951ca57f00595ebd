package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// ClusterURL is the base of the URLs that Instance.Client calls, for libraries
// that insist on absolute ones.
const ClusterURL = "http://" + clusterHost

const clusterHost = "pinned.cluster"

// Errors of calls by Instance.Client, for errors.Is. The call was not made.
var (
	// ErrDepth: more than 50 calls between instances led to this one. Most
	// likely they go round in a circle.
	ErrDepth = errors.New("worker: too many calls led to this one")
	// ErrNotRegistered: the worker has no session with pinboard to call in, and
	// got none within a second.
	ErrNotRegistered = errors.New("worker: the worker is not registered with pinboard")
	// ErrReleased: the instance has closed and its id was released, or is
	// another worker's. It can't speak for the id any more.
	ErrReleased = errors.New("worker: the instance is released")
	// ErrUnknownTarget: there is no pinboard, and this worker does not host the
	// namespace.
	ErrUnknownTarget = errors.New("worker: unknown cluster target, no pinboard configured")
)

// Client returns a client for calls to other instances, at ClusterURL or just
// at the path: "/counters/bob/value". Whoever calls Client owns what it returns.
// It follows no redirects, and has no timeout and no cookies.
//
// An id that lives on this worker is called in process, past any middleware
// around the Worker; every other one through pinboard, which activates it if
// need be and prefers this worker for that. Either way the instance that is
// called learns from CallerFrom who calls, and not on whose behalf: the account
// that made the first request is not passed on. Answers of pinboard's own, such
// as a 503 with Retry-After, come back as answers.
//
// Give a call the context of the request that it is made for. The call ends
// with it, and its depth is one more than that request's; beyond 50 it fails
// with ErrDepth. A call with any other context is the first of a new chain.
//
// An instance can call until its OnClose hooks have returned, also itself, but
// for its constructor: that would wait for itself.
func (i *Instance) Client() *http.Client {
	return &http.Client{
		Transport:     &callTransport{inst: i, calls: i.dir.calls},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// callTransport makes the calls of one instance.
type callTransport struct {
	inst  *Instance
	calls *calls
}

// RoundTrip implements http.RoundTripper.
func (t *callTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	depth, err := t.check(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as every RoundTripper must
		}
		return nil, err
	}
	res, err := t.calls.do(t.inst, r, depth)
	if err != nil {
		return nil, err // not wrapped: http.Client asks it whether it is a timeout
	}
	// The request that was sent may hold what the application must not see.
	res.Request = r
	cleanAnswer(res)
	return res, nil
}

// check refuses what must not be sent, and returns the depth of the call.
func (t *callTransport) check(r *http.Request) (depth int, err error) {
	if t.inst.muted.Load() || t.inst.lost.Load() {
		return 0, ErrReleased
	}
	if err := checkTarget(r.URL); err != nil {
		return 0, err
	}
	for name := range r.Trailer {
		if wire.Reserved(name) {
			return 0, fmt.Errorf("worker: call: the trailer %q has a name of pinboard's own", name)
		}
	}
	depth = 1
	if caller, ok := CallerFrom(r.Context()); ok && caller.Instance != nil {
		depth = caller.Instance.Depth + 1
	}
	if depth > wire.MaxDepth {
		return 0, ErrDepth
	}
	return depth, nil
}

// checkTarget returns nil for a URL that names an instance, and no server.
func checkTarget(u *url.URL) error {
	switch {
	case u == nil:
		return errors.New("worker: call: the request has no URL")
	case u.Scheme != "" && u.Scheme != "http", u.Host != "" && !strings.EqualFold(u.Host, clusterHost):
		return fmt.Errorf("worker: call: the URL must start with %s, or be just a path", ClusterURL)
	case !strings.HasPrefix(u.Path, "/"):
		return errors.New("worker: call: the path must start with a slash: /namespace/id")
	}
	return nil
}

// sessionWait is how long a call waits for a session while the worker registers
// anew.
const sessionWait = time.Second

// calls are the calls of this worker's instances (protocol §6).
type calls struct {
	worker *Worker
	base   *url.URL // pinboard's
	// hostname is the Host of a call, "" for pinboard's own.
	hostname string

	remote   http.RoundTripper
	owned    *http.Transport // remote, unless that is the host's
	loopback *loopback
}

func newCalls(w *Worker) (*calls, error) {
	base, err := url.Parse(w.opts.PinboardURL)
	if err != nil {
		return nil, errors.New("worker: Options.PinboardURL is not a URL")
	}
	c := &calls{
		worker: w, base: base, hostname: w.opts.Hostname, remote: w.opts.Transport,
	}
	if c.remote == nil {
		// Not the registration's: no heartbeat must wait behind a call.
		c.owned = directTransport()
		c.owned.MaxIdleConnsPerHost = maxIdleCalls
		c.owned.DisableCompression = true // the same call, wherever it goes
		c.owned.ExpectContinueTimeout = continueTimeout
		c.remote = c.owned
	}
	c.loopback = newLoopback(w)
	return c, nil
}

// close ends what is kept for calls; with wait, which is for when there is no
// instance left, nothing of it runs afterwards.
func (c *calls) close(wait bool) {
	if c.owned != nil {
		c.owned.CloseIdleConnections()
	}
	c.loopback.close(wait)
}

// do sends a call to where its target lives.
func (c *calls) do(inst *Instance, r *http.Request, depth int) (*http.Response, error) {
	out := c.outgoing(inst, r, depth)
	epoch, here := c.livesHere(r.URL)
	if !here {
		return c.throughPinboard(out)
	}
	local := c.worker.opts.local()
	body := newCallBody(r, !local)
	first, err := body.open()
	if err != nil {
		return nil, err
	}
	res, refused, err := c.inProcess(out, first, epoch)
	if !refused || local || !body.again() {
		body.last()
		return res, err
	}
	// It began to close, or the lease ended, since livesHere has looked. The
	// instance has not seen the call: pinboard knows who is next.
	dropAnswer(res)
	next, err := body.open()
	if err != nil {
		return nil, err
	}
	body.last()
	out.Body = next
	return c.throughPinboard(out)
}

// livesHere reports whether a call is to be served in process, and the placement
// of its target, 0 if it is not known.
func (c *calls) livesHere(u *url.URL) (epoch int64, here bool) {
	namespace, id, _, ok := splitPath(u.EscapedPath())
	if !ok {
		return 0, false
	}
	if c.worker.opts.local() && c.worker.host(namespace) != nil {
		return 0, true
	}
	return c.worker.dir.servedEpoch(key{namespace, id})
}

// servedEpoch returns the placement of an id with an instance that takes
// requests, as far as one can tell before.
func (d *directory) servedEpoch(k key) (epoch int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	inst := d.instances[k]
	if inst == nil || inst.state == stateClosing {
		return 0, false
	}
	return inst.epoch.Load(), true
}

// outgoing returns the request with what both ways have in common.
func (c *calls) outgoing(inst *Instance, r *http.Request, depth int) *http.Request {
	out := r.WithContext(discreet(r.Context()))
	out.Header = http.Header{}
	for name, values := range r.Header {
		if !wire.Reserved(name) {
			out.Header[name] = values
		}
	}
	out.Header.Set(wire.HeaderFrom, inst.namespace+"/"+inst.id)
	out.Header.Set(wire.HeaderDepth, strconv.Itoa(depth))
	out.Host = cmp.Or(c.hostname, c.base.Host, clusterHost)
	return out
}

// throughPinboard calls by pinboard's data plane. The session's secret goes
// there and nowhere else: out is not shown to anybody, and no redirect followed.
func (c *calls) throughPinboard(out *http.Request) (*http.Response, error) {
	if c.worker.opts.local() {
		closeBody(out)
		return nil, ErrUnknownTarget
	}
	session, err := c.worker.reg.awaitSession(out.Context(), sessionWait)
	if err != nil {
		closeBody(out)
		return nil, err
	}
	out.URL = &url.URL{
		Scheme: c.base.Scheme, Host: c.base.Host,
		Path: c.base.Path + out.URL.Path, RawPath: c.base.EscapedPath() + out.URL.EscapedPath(),
		RawQuery: out.URL.RawQuery, ForceQuery: out.URL.ForceQuery,
	}
	out.Header.Set(wire.HeaderSession, session)
	out.Header.Set(wire.HeaderSessionSecret, c.worker.reg.secret.Reveal())
	return c.remote.RoundTrip(out)
}

// awaitSession returns the session, which is gone for a moment when pinboard has
// forgotten it.
func (r *registration) awaitSession(ctx context.Context, limit time.Duration) (string, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		changed := r.changes()
		if session := r.sessionID(); session != "" {
			return session, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return "", ErrNotRegistered
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// discreet returns a context whose httptrace hooks, which are the
// application's, are not told pinboard's own headers: neither the secrets of a
// call nor those that no answer shows.
func discreet(ctx context.Context) context.Context {
	theirs := httptrace.ContextClientTrace(ctx)
	if theirs == nil {
		return ctx
	}
	trace := *theirs
	if tell := theirs.WroteHeaderField; tell != nil {
		trace.WroteHeaderField = func(name string, values []string) {
			if !wire.Reserved(name) {
				tell(name, values)
			}
		}
	}
	if tell := theirs.Got1xxResponse; tell != nil {
		trace.Got1xxResponse = func(code int, header textproto.MIMEHeader) error {
			dropReserved(http.Header(header))
			return tell(code, header)
		}
	}
	return httptrace.WithClientTrace(untraced{ctx}, &trace)
}

// untraced is a context without the hooks of httptrace, which otherwise only
// can be added to.
type untraced struct{ context.Context }

// Value implements context.Context.
func (u untraced) Value(key any) any {
	value := u.Context.Value(key)
	if _, hooks := value.(*httptrace.ClientTrace); hooks {
		return nil
	}
	return value
}

// cleanAnswer takes pinboard's own names off an answer, its trailers included.
func cleanAnswer(res *http.Response) {
	dropReserved(res.Header)
	dropReserved(res.Trailer)
	// The body of a 101 is the connection, which must stay writable.
	if res.Body != nil && res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &answerBody{ReadCloser: res.Body, res: res}
	}
}

// answerBody cleans the trailers, which are known when the body ends.
type answerBody struct {
	io.ReadCloser
	res *http.Response
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		dropReserved(b.res.Trailer)
	}
	return n, err
}

func dropReserved(h http.Header) {
	for name := range h {
		if wire.Reserved(name) {
			delete(h, name)
		}
	}
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

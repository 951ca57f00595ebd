package worker

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Paths for an orchestrator's probes, beside those of protocol §3. Pinboard
// never routes a client to them.
const (
	pathLive  = "/_pinned/live"
	pathReady = "/_pinned/ready"
)

// ServeHTTP serves what pinboard calls: the routes below /_pinned/, and
// /<namespace>/<id>/… for instances, both behind the base path of
// Options.AdvertiseURL if there is one. The server around it has no ReadTimeout
// and no WriteTimeout, which would cut streams, and an IdleTimeout above the 4 s
// after which pinboard closes idle connections. http.ServeMux redirects paths
// with "//": put the worker in front of it where that matters. A ResponseWriter that a
// handler around the worker wraps needs an Unwrap method, as in HostOptions.Middleware. When a request that has
// a body is refused, its body and its context end soon after: what is around the worker
// does not use them any more then.
func (w *Worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, false) }

// serveOwn is ServeHTTP for a server of the worker's own: nobody else sees the
// request.
func (w *Worker) serveOwn(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, true) }

func (w *Worker) serve(rw http.ResponseWriter, r *http.Request, own bool) {
	path := belowBase(r, w.base, own)
	switch path {
	case wire.PathChallenge:
		w.probe(rw, r, w.serveChallenge)
	case wire.PathStats:
		w.probe(rw, r, w.serveStats)
	case pathLive:
		w.probe(rw, r, w.serveLive)
	case pathReady:
		w.probe(rw, r, w.serveReady)
	default:
		if ref := w.serveInstance(rw, r, path, own); ref != nil {
			leaveRest(rw, r)
			ref.write(rw)
		}
	}
}

// probe serves a route of the worker's own.
func (w *Worker) probe(rw http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter, *http.Request) *refusal) {
	leaveRest(rw, r) // none of them has a body, and anybody may send one
	ref := refuseMethod
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		ref = serve(rw, r)
	}
	if ref != nil {
		ref.write(rw)
	}
}

func (w *Worker) serveChallenge(rw http.ResponseWriter, r *http.Request) *refusal {
	if !w.hasSecret(r) {
		return refuseProbe
	}
	value, ok := w.reg.answerChallenge(r.URL.Query().Get("challenge"))
	if !ok {
		return refuseChallenge
	}
	jsonbody.Write(rw, http.StatusOK, wire.ChallengeAnswer{Value: value})
	return nil
}

func (w *Worker) serveStats(rw http.ResponseWriter, r *http.Request) *refusal {
	if !w.hasSecret(r) {
		if _, _, err := w.attested(r.Header[wire.HeaderAttestation]); err != nil {
			return refuseProbe
		}
	}
	jsonbody.Write(rw, http.StatusOK, w.Stats())
	return nil
}

func (w *Worker) serveLive(rw http.ResponseWriter, _ *http.Request) *refusal {
	jsonbody.Write(rw, http.StatusOK, map[string]bool{"live": true})
	return nil
}

func (w *Worker) serveReady(rw http.ResponseWriter, _ *http.Request) *refusal {
	if why := w.notReady(); why != "" {
		return &refusal{status: http.StatusServiceUnavailable, detail: why}
	}
	jsonbody.Write(rw, http.StatusOK, map[string]bool{"ready": true})
	return nil
}

func (w *Worker) hasSecret(r *http.Request) bool {
	sent := r.Header[wire.HeaderProxySecret]
	return len(sent) == 1 && w.reg.secret.Equal(wire.NewSecret(sent[0]))
}

var errNoAttestation = errors.New("not exactly one attestation")

// attested returns what pinboard attests of the request: that it is meant for
// this worker's current session, and who calls; and when it was asked.
func (w *Worker) attested(sent []string) (claims *attest.Claims, now instant, err error) {
	if len(sent) != 1 {
		return nil, instant{}, errNoAttestation
	}
	claims, err = w.attests.Verify(sent[0], w.reg.sessionID(), func() time.Time {
		now = w.clock()
		return now.wall
	})
	return claims, now, err
}

// ours are the headers of pinboard's own that a request came with.
type ours struct {
	attestation, epoch []string
	n                  int // of all, with those that no worker expects; only if own
}

// oursIn looks them up; in a header of the worker's own, by going through it once
// for all there is to find. Another one is gone through when it is copied.
func oursIn(h http.Header, own bool) (o ours) {
	if !own {
		return ours{attestation: h[wire.HeaderAttestation], epoch: h[wire.HeaderEpoch]}
	}
	for name, values := range h {
		if !wire.Reserved(name) { // nearly always
			continue
		}
		o.n++
		switch name {
		case wire.HeaderAttestation:
			o.attestation = values
		case wire.HeaderEpoch:
			o.epoch = values
		}
	}
	return o
}

// withoutOurs returns a copy of a header without pinboard's own.
func withoutOurs(h http.Header) http.Header {
	const usual = 2 // of them
	others := make(http.Header, max(0, len(h)-usual))
	for name, values := range h {
		if !wire.Reserved(name) {
			others[name] = values
		}
	}
	return others
}

// dropOurs takes pinboard's own, of which there are n, out of a header.
func dropOurs(h http.Header, n int) {
	before := len(h)
	delete(h, wire.HeaderAttestation)
	delete(h, wire.HeaderEpoch)
	if before-len(h) < n {
		dropReserved(h)
	}
}

// serveInstance serves an instance's route, or returns why not. Nothing is
// looked at before the attestation is.
func (w *Worker) serveInstance(rw http.ResponseWriter, r *http.Request, path string, own bool) *refusal {
	sent := oursIn(r.Header, own)
	by, now := &nobody, instant{}
	if w.opts.local() {
		now = w.clock()
	} else {
		var err error
		if by, now, err = w.attested(sent.attestation); err != nil {
			return refuseAttestation
		}
	}
	v := &visit{refuse: (*refusal).write, own: own, by: by}
	return w.serveAttested(v, &sent, &now, path, rw, r)
}

// nobody is who calls in local mode.
var nobody attest.Claims

// serveAttested serves an instance's route to a caller that is known, to whom that
// was so at now. What is refused is returned, or written by v.refuse.
func (w *Worker) serveAttested(v *visit, sent *ours, now *instant, path string, rw http.ResponseWriter, r *http.Request) *refusal {
	namespace, id, rest, ok := splitPath(path)
	if !ok {
		return refusePath
	}
	h := w.host(namespace)
	if h == nil {
		return refuseNamespace
	}
	if err := wire.CheckID(id); err != nil {
		return &refusal{status: http.StatusBadRequest, detail: err.Error()}
	}
	v.Context, v.key, v.worker, v.host = r.Context(), key{h.namespace, id}, w, h
	v.watch = stopwatch{clock: w.clock, began: now.mono, into: h.duration}
	defer v.watch.stop()
	if v.epoch, ok = placementEpoch(sent.epoch); !ok {
		return refuseEpoch
	}
	if w.opts.local() {
		v.epoch = 0 // nobody places anything
	}
	v.rest, v.ours = place{raw: rest, path: rest}, sent.n
	if strings.IndexByte(rest, '%') >= 0 {
		var err error
		if v.rest.path, err = url.PathUnescape(rest); err != nil {
			return refusePath
		}
	}
	if h.opts.Middleware == nil {
		w.enter(v, v, now, rw, r)
		return nil
	}
	w.serveMiddleware(v, rw, r)
	return nil
}

// serveMiddleware serves a request by way of the namespace's middleware, which
// may keep an answer back, or give one of its own.
func (w *Worker) serveMiddleware(v *visit, rw http.ResponseWriter, r *http.Request) {
	if w.lease.state() == leaseExpired {
		leaveRest(rw, r)
		v.refuse(w.dir.expired(), rw)
		return
	}
	defer func() {
		if !v.entered.Load() {
			w.dir.discard(v.key, v.epoch, v.host)
		}
	}()
	res := &responder{ResponseWriter: rw, tooLate: v.late, owner: v}
	seen := v.request(v, r)
	defer removeFiles(seen, r)
	defer res.contain()
	v.host.handler.ServeHTTP(res, seen)
	res.finish()
	if refused := v.entered.Load() || res.dropped != nil; refused && v.inst.Load() == nil && !res.stream {
		leaveRest(rw, r) // not before: the middleware may let it in again, with its body
	}
}

// fromMiddleware hands requests on from a namespace's middleware to its
// instances.
func (w *Worker) fromMiddleware(h *host) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		v, ok := r.Context().Value(targetKey{}).(*visit)
		if !ok || v.host != h {
			refusePath.write(rw) // a middleware kept it for a request of its own
			return
		}
		w.enter(v, r.Context(), nil, rw, r)
	})
}

// enter lets a request in to its instance, or refuses it. ctx is what its
// context is to be derived from, and now when the clocks were read, nil if the
// request has waited for anything since.
func (w *Worker) enter(v *visit, ctx context.Context, now *instant, rw http.ResponseWriter, r *http.Request) {
	f := &v.flight
	if v.entered.Swap(true) {
		f = &flight{} // it has been here before
	}
	f.Context = ctx
	if ref := w.dir.enter(f, v, now); ref != nil {
		w.metrics.refused(ref, r)
		if v.host.opts.Middleware == nil {
			leaveRest(rw, r)
		}
		v.refuse(ref, rw)
		return
	}
	v.inst.Store(f.inst)
	f.watch = &v.watch
	var seen *http.Request
	if v.host.opts.Middleware == nil {
		seen = v.request(f, r)
	} else { // it has got it so, and may have changed it since
		seen = r.WithContext(f)
	}
	defer removeFiles(seen, r)
	f.serve(rw, seen)
}

// removeFiles removes the files of a form that was parsed for seen, a copy of r. The
// server does that for the request that it knows, and it does not know a copy.
func removeFiles(seen, r *http.Request) {
	if form := seen.MultipartForm; form != nil && form != r.MultipartForm {
		_ = form.RemoveAll() // nobody is left who could do something about it
	}
}

// placementEpoch reads the placement that pinboard routed the request by, 0 if
// it names none.
func placementEpoch(sent []string) (epoch int64, ok bool) {
	if len(sent) == 0 {
		return 0, true
	}
	if len(sent) > 1 {
		return 0, false
	}
	number, err := strconv.ParseUint(sent[0], 10, 63) // digits and nothing else
	return int64(number), err == nil
}

// place is a path, escaped and not.
type place struct{ raw, path string }

// request returns the request as the instance sees it: with the rest of the path,
// and without pinboard's own headers. An attestation that an application passes on
// would be good for others. A request that nobody else sees is not spared.
func (v *visit) request(ctx context.Context, r *http.Request) *http.Request {
	v.seen = *r.WithContext(ctx) // it is one piece of memory with the rest
	r = &v.seen
	if v.own {
		dropOurs(r.Header, v.ours)
	} else {
		u := *r.URL
		r.URL, r.Header = &u, withoutOurs(r.Header)
	}
	usual := r.URL.RawPath == "" // then that of a part is usual, too
	r.URL.Path, r.URL.RawPath = v.rest.path, ""
	if !usual && r.URL.EscapedPath() != v.rest.raw {
		r.URL.RawPath = v.rest.raw
	}
	return r
}

// belowBase returns the request's path, escaped, without the base path of the
// advertise URL, unless that has been taken off already: http.StripPrefix
// leaves it in RequestURI. A request that nobody else sees has its path there as it
// was sent.
func belowBase(r *http.Request, base string, own bool) string {
	path := r.URL.Path
	if !own || !sentAs(r, path) {
		path = r.URL.EscapedPath()
	}
	if base == "" {
		return path
	}
	target, _, _ := strings.Cut(r.RequestURI, "?")
	if target == base+path {
		return path
	}
	if rest, ok := strings.CutPrefix(path, base); ok && strings.HasPrefix(rest, "/") {
		return rest
	}
	return path
}

// sentAs reports whether a request's target has this for its path, and no other
// spelling of it.
func sentAs(r *http.Request, path string) bool {
	rest, ok := strings.CutPrefix(r.RequestURI, path)
	return ok && r.URL.RawPath == "" && (rest == "" || rest[0] == '?')
}

// splitPath takes /<namespace>/<id>/<rest> apart. The namespace is decoded, the
// rest is raw and starts with a slash; so is an id, which is never escaped.
func splitPath(path string) (namespace, id, rest string, ok bool) {
	trimmed, ok := strings.CutPrefix(path, "/")
	if !ok {
		return "", "", "", false
	}
	name, after, _ := strings.Cut(trimmed, "/")
	namespace = path[:len("/")+len(name)]
	if strings.IndexByte(name, '%') >= 0 {
		name, err := url.PathUnescape(name)
		if err != nil {
			return "", "", "", false
		}
		namespace = "/" + name
	}
	if name == "" {
		return "", "", "", false
	}
	id, _, more := strings.Cut(after, "/")
	if !more {
		return namespace, id, "/", true
	}
	return namespace, id, after[len(id):], true
}

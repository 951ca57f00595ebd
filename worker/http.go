package worker

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"

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
// with "//": put the worker in front of it where that matters.
func (w *Worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	path := belowBase(r, w.base)
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
		if ref := w.serveInstance(rw, r, path); ref != nil {
			ref.write(rw)
		}
	}
}

// probe serves a route of the worker's own.
func (w *Worker) probe(rw http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter, *http.Request) *refusal) {
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
		if _, err := w.attested(r); err != nil {
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
// this worker's current session, and who calls.
func (w *Worker) attested(r *http.Request) (attest.Claims, error) {
	sent := r.Header[wire.HeaderAttestation]
	if len(sent) != 1 {
		return attest.Claims{}, errNoAttestation
	}
	session := w.reg.sessionID()
	return attest.Verify(sent[0], w.reg.secret, func(audience string) bool {
		return session != "" && audience == session
	}, w.clock().wall)
}

// serveInstance serves an instance's route, or returns why not. Nothing is
// looked at before the attestation is.
func (w *Worker) serveInstance(rw http.ResponseWriter, r *http.Request, path string) *refusal {
	var claims attest.Claims
	if !w.opts.local() {
		var err error
		if claims, err = w.attested(r); err != nil {
			return refuseAttestation
		}
	}
	return w.serveAttested(rw, r, path, claims, (*refusal).write)
}

// serveAttested serves an instance's route to a caller that is known. What is
// refused is returned, or written by refuse.
func (w *Worker) serveAttested(rw http.ResponseWriter, r *http.Request, path string, claims attest.Claims, refuse refuser) *refusal {
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
	to := &target{
		key: key{namespace, id}, session: claims.Audience,
		watch: startWatch(w.clock, h.duration), refuse: refuse,
	}
	defer to.watch.stop()
	if to.epoch, ok = placementEpoch(r.Header); !ok {
		return refuseEpoch
	}
	if w.opts.local() {
		to.epoch = 0 // nobody places anything
	}
	inner, err := url.PathUnescape(rest)
	if err != nil {
		return refusePath
	}
	if w.lease.state() == leaseExpired {
		return refuseExpired // the middleware may answer by itself
	}
	ctx := context.WithValue(withCaller(r.Context(), claims), targetKey{}, to)
	defer func() {
		if !to.entered.Load() {
			w.dir.discard(to.key, to.epoch, h)
		}
	}()
	r = forInstance(r.WithContext(ctx), rest, inner)
	if h.opts.Middleware == nil {
		h.handler.ServeHTTP(rw, r)
		return nil
	}
	// A middleware may keep an answer back, or give one of its own.
	res := &responder{
		ResponseWriter: rw, tooLate: to.late,
		owned: func() bool { return w.lease.state() != leaseExpired && !to.lost() },
	}
	h.handler.ServeHTTP(res, r)
	res.finish()
	return nil
}

// target is the instance that a request is for.
type target struct {
	key
	epoch   int64                    // the placement that it was routed by, 0 if not known
	session string                   // that it was sent to, "" in local mode
	entered atomic.Bool              // the middleware has let it through
	inst    atomic.Pointer[Instance] // once its handler is called
	watch   *stopwatch
	refuse  refuser
}

// lost reports whether the instance that got the request is another worker's.
func (to *target) lost() bool {
	inst := to.inst.Load()
	return inst != nil && inst.lost.Load()
}

// late refuses a request that a middleware has kept for too long.
func (to *target) late(ref *refusal, rw http.ResponseWriter) {
	if to.inst.Load() == nil {
		ref = refuseExpired // the instance has not seen it
	}
	to.refuse(ref, rw)
}

// refuser answers with a refusal.
type refuser func(*refusal, http.ResponseWriter)

type targetKey struct{}

// TargetFrom returns the instance that the request is for that ctx belongs to,
// for a middleware (HostOptions). It reports false outside of a request.
func TargetFrom(ctx context.Context) (namespace, id string, ok bool) {
	to, ok := ctx.Value(targetKey{}).(*target)
	if !ok {
		return "", "", false
	}
	return to.namespace, to.id, true
}

// instanceHandler hands requests on to the instances of a namespace.
func (w *Worker) instanceHandler(h *host) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		to, ok := r.Context().Value(targetKey{}).(*target)
		if !ok || to.namespace != h.namespace {
			refusePath.write(rw) // a middleware kept it for a request of its own
			return
		}
		to.entered.Store(true)
		f, ref := w.dir.enter(r.Context(), to, h)
		if ref != nil {
			w.metrics.refused(ref, r)
			to.refuse(ref, rw)
			return
		}
		to.inst.Store(f.inst)
		f.watch = to.watch
		f.serve(rw, r.WithContext(f.ctx))
	})
}

// placementEpoch reads the placement that pinboard routed the request by, 0 if
// it names none.
func placementEpoch(h http.Header) (epoch int64, ok bool) {
	sent := h[wire.HeaderEpoch]
	if len(sent) == 0 {
		return 0, true
	}
	if len(sent) > 1 || sent[0] == "" || strings.Trim(sent[0], "0123456789") != "" {
		return 0, false
	}
	epoch, err := strconv.ParseInt(sent[0], 10, 64)
	return epoch, err == nil
}

// forInstance changes a request, which is a copy, to how the instance sees it:
// with the rest of the path, and without pinboard's own headers. An attestation
// that an application passes on would be good for others.
func forInstance(r *http.Request, raw, path string) *http.Request {
	u := *r.URL
	u.Path, u.RawPath = path, ""
	if u.EscapedPath() != raw {
		u.RawPath = raw
	}
	r.URL = &u
	r.Header = maps.Clone(r.Header)
	maps.DeleteFunc(r.Header, func(name string, _ []string) bool { return wire.Reserved(name) })
	return r
}

// belowBase returns the request's path, escaped, without the base path of the
// advertise URL, unless that has been taken off already: http.StripPrefix
// leaves it in RequestURI.
func belowBase(r *http.Request, base string) string {
	path := r.URL.EscapedPath()
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

// splitPath takes /<namespace>/<id>/<rest> apart. The namespace is decoded, the
// rest is raw and starts with a slash; so is an id, which is never escaped.
func splitPath(path string) (namespace, id, rest string, ok bool) {
	trimmed, ok := strings.CutPrefix(path, "/")
	if !ok {
		return "", "", "", false
	}
	name, after, _ := strings.Cut(trimmed, "/")
	name, err := url.PathUnescape(name)
	if err != nil || name == "" {
		return "", "", "", false
	}
	id, rest, _ = strings.Cut(after, "/")
	return "/" + name, id, "/" + rest, true
}

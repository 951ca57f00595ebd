package pinboard

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Spans of one request, each below the one above it:
//
//	pinboard.proxy /counters    server, or internal below a span of the host's
//	  pinboard.resolve          whose the id is; again after a refusal
//	  pinboard.hold             while it waits (Options.PlacementHold)
//	  pinboard.attempt          client: what a worker was sent, and its answer
//
// and pinboard.probe for each probe of a worker. docs/tracing.md has their
// attributes. What a client can make up at will, such as a namespace that nobody
// serves, is in no span's name; tokens, headers, paths and queries are in no span.

const scopeName = "github.com/pinboard-go/pinboard"

// Attributes of pinboard's own.
const (
	attrNamespace = attribute.Key("pinboard.namespace")
	attrID        = attribute.Key("pinboard.id")      // with Options.TraceIDs
	attrOutcome   = attribute.Key("pinboard.outcome") // of a look-up or a hold
	attrWorker    = attribute.Key("pinboard.worker")  // clientId
	attrEpoch     = attribute.Key("pinboard.epoch")
	attrRefusal   = attribute.Key("pinboard.refusal") // in-band (protocol §5)
	attrDepth     = attribute.Key("pinboard.depth")   // of a cluster call
	attrEnd       = attribute.Key("pinboard.end")     // why it ended early, where that is no error
)

var w3c propagation.TraceContext

// traces makes the spans of a node. One that is off makes none.
type traces struct {
	off     bool
	given   trace.Tracer                 // nil: of the process's provider
	process atomic.Pointer[trace.Tracer] // once there is one
	ids     bool
	trusted proxies
}

func newTraces(o *Options) *traces {
	t := &traces{ids: o.TraceIDs, trusted: o.TrustedProxies}
	switch p := o.TracerProvider.(type) {
	case nil:
	case noop.TracerProvider:
		t.off = true
	default:
		t.given = tracerOf(p)
	}
	return t
}

func tracerOf(p trace.TracerProvider) trace.Tracer {
	return p.Tracer(scopeName, trace.WithSchemaURL(semconv.SchemaURL))
}

// tracer returns nil while there is no provider, and allocates nothing then.
func (t *traces) tracer() trace.Tracer {
	if t.off || t.given != nil {
		return t.given
	}
	if tracer := t.process.Load(); tracer != nil {
		return *tracer
	}
	p := otel.GetTracerProvider()
	if nobodys(p) {
		return nil
	}
	tracer := tracerOf(p)
	t.process.Store(&tracer)
	return tracer
}

// nobodys reports whether a provider of the process is the one that is there before
// anybody has set one. Its spans record nothing, but cost something.
func nobodys(p trace.TracerProvider) bool {
	kind := reflect.TypeOf(p)
	if _, none := p.(noop.TracerProvider); none || kind == nil {
		return true
	}
	return kind.Kind() == reflect.Pointer && kind.Elem().PkgPath() == "go.opentelemetry.io/otel/internal/global"
}

// trail is what is traced of one request. A nil one traces nothing.
type trail struct {
	*traces
	tracer trace.Tracer
	began  time.Time

	ctx      context.Context // the request's, with its span
	span     trace.Span      // nil before begin
	hold     trace.Span
	attempts int
	apart    bool // its span goes on with a stream
}

// enter begins to look at a request.
func (t *traces) enter() *trail {
	tracer := t.tracer()
	if tracer == nil {
		return nil
	}
	return &trail{traces: t, tracer: tracer, began: time.Now()}
}

// begin begins the span of a request, of which is known by now who sends it, and
// whether it was let in: err is what it is refused with.
//
// Its parent is the host's own span, or what the host has put in its place.
// Otherwise it is the client's, where somebody vouches for the client: a trusted
// proxy, a credential, or the session of a cluster call. Anybody else could make up
// whose trace it is, and have every request recorded: such a request begins a trace
// of its own, which is linked to what it says.
func (l *trail) begin(v *visit, c *call, err error) {
	if l == nil {
		return
	}
	ctx := v.r.Context()
	opts := []trace.SpanStartOption{trace.WithTimestamp(l.began), trace.WithAttributes(l.describe(v.r, c, err == nil)...)}
	kind := trace.SpanKindServer
	if host := trace.SpanContextFromContext(ctx); host.IsValid() {
		if !host.IsRemote() {
			kind = trace.SpanKindInternal
		}
	} else {
		with := w3c.Extract(ctx, headerCarrier(v.r.Header))
		switch client := trace.SpanContextFromContext(with); {
		case !client.IsValid():
		case c.who != nil, c.claims.Caller != "", v.peer.IsValid() && l.trusted.trust(v.peer):
			ctx = with
		default:
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: client}))
		}
	}
	l.ctx, l.span = l.tracer.Start(ctx, "pinboard.proxy", append(opts, trace.WithSpanKind(kind))...)
	switch {
	case err == errPreflight:
		l.answered(http.StatusNoContent)
	case err != nil:
		l.refused(err)
	}
}

// describe returns what is known of a request at its begin.
func (l *trail) describe(r *http.Request, c *call, admitted bool) []attribute.KeyValue {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	attrs := []attribute.KeyValue{
		methodOf(r), semconv.URLScheme(scheme), semconv.NetworkProtocolVersion(protocolVersion(r)),
	}
	if c.host != "" {
		attrs = append(attrs, semconv.ServerAddress(c.host))
	}
	if !admitted {
		return attrs
	}
	attrs = append(attrs, attrNamespace.String(c.namespace))
	if l.ids {
		attrs = append(attrs, attrID.String(c.id))
	}
	if c.claims.Caller != "" {
		attrs = append(attrs, attrDepth.Int(c.claims.Depth))
	}
	return attrs
}

func methodOf(r *http.Request) attribute.KeyValue {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace, http.MethodPatch:
		return semconv.HTTPRequestMethodKey.String(r.Method)
	}
	return semconv.HTTPRequestMethodOther
}

func protocolVersion(r *http.Request) string {
	if r.ProtoMajor >= 2 {
		return strconv.Itoa(r.ProtoMajor)
	}
	return "1." + strconv.Itoa(r.ProtoMinor)
}

// propagates reports whether workers are told of the trail, instead of what the
// client says.
func (l *trail) propagates() bool { return l != nil && l.span.SpanContext().IsValid() }

// strip returns the request without what the client says of traces, if something
// else is said. The original is not changed.
func (l *trail) strip(r *http.Request) *http.Request {
	if !l.propagates() {
		return r
	}
	seen := *r
	seen.Header = make(http.Header, len(r.Header))
	for name, values := range r.Header {
		if !strings.EqualFold(name, headerTraceparent) && !strings.EqualFold(name, headerTracestate) {
			seen.Header[name] = values
		}
	}
	return &seen
}

// answered notes the status of a worker's answer, as the client gets it.
func (l *trail) answered(status int) {
	if l == nil || l.span == nil {
		return
	}
	l.span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	if status >= 500 {
		l.span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(status)))
		l.span.SetStatus(codes.Error, "")
	}
}

// refused notes an answer of pinboard's own.
func (l *trail) refused(err error) {
	if l == nil || l.span == nil {
		return
	}
	ref := asRefusal(err)
	if ref.status == statusClientGone {
		l.span.SetAttributes(attrEnd.String(endClient))
		return
	}
	l.answered(ref.status)
	if ref.status >= 500 {
		l.span.SetStatus(codes.Error, ref.message)
	}
}

// waits begins a hold.
func (l *trail) waits() {
	if l != nil {
		_, l.hold = l.tracer.Start(l.ctx, "pinboard.hold")
	}
}

// waited ends a hold, with what held.wait returned.
func (l *trail) waited(err error) {
	if l == nil {
		return
	}
	outcome := endClient
	switch {
	case err == nil:
		outcome = "found"
	case errors.Is(err, errHoldOver):
		outcome = "over"
	case errors.Is(err, errHoldStopped):
		outcome = endNode
	}
	l.hold.SetAttributes(attrOutcome.String(outcome))
	l.hold.End()
}

// end ends the span at the end of the handler, unless it goes on.
func (l *trail) end() {
	if l != nil && l.span != nil && !l.apart {
		l.span.End()
	}
}

// resolve finds out whose the id is.
func (e *exchange) resolve(a ask) (route, error) {
	l := e.trail
	if l == nil {
		return e.x.p.placer.resolve(e.r.Context(), a)
	}
	ctx, span := l.tracer.Start(l.ctx, "pinboard.resolve")
	defer span.End()
	rt, err := e.x.p.placer.resolve(ctx, a)
	outcome := "asked" // the store
	switch {
	case e.r.Context().Err() != nil:
		outcome = endClient
	case err != nil:
		outcome = "refused"
		if ref := asRefusal(err); ref.status >= 500 {
			span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(ref.status)))
			span.SetStatus(codes.Error, ref.message)
		}
	case rt.recalled:
		outcome = "recalled"
	}
	span.SetAttributes(attrOutcome.String(outcome))
	if err == nil {
		span.SetAttributes(attrWorker.String(rt.lease.ClientID), attrEpoch.Int64(rt.epoch))
	}
	return rt, err
}

const (
	headerTraceparent = "Traceparent"
	headerTracestate  = "Tracestate"
)

// headerCarrier reads the trace context of a request. Several tracestates are one
// list; several traceparents, joined like that, are malformed, as they should be
// (W3C Trace Context, section 3.2).
type headerCarrier http.Header

// Get implements propagation.TextMapCarrier.
func (h headerCarrier) Get(key string) string {
	return strings.Join(http.Header(h).Values(key), ",")
}

// Set implements propagation.TextMapCarrier.
func (h headerCarrier) Set(key, value string) { http.Header(h).Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (h headerCarrier) Keys() []string { return []string{headerTraceparent, headerTracestate} }

package pinboard

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/pinboard-go/pinboard/internal/upstream"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Why something ended before it was whole: error.type, or pinboard.end where
// nobody here is to blame.
const (
	endClient      = "client_gone"
	endBody        = "body_unreadable" // the client's
	endOwner       = "owner_ended"     // its session
	endNode        = "node_stopping"
	endSilent      = "silent"
	endTimeout     = "timeout"
	endNoConnect   = "no_connection"
	endMalformed   = "malformed_answer"
	endLost        = "connection_lost"
	endOutOfTime   = "looked_up_too_long_ago" // nothing was sent
	endUnspecified = "_OTHER"
)

// leg is what is traced of one request to a worker. A nil one traces nothing.
type leg struct {
	ctx  context.Context
	span trace.Span
}

// attempt begins a request to a worker.
func (l *trail) attempt(e *exchange, rt route) *leg {
	if l == nil {
		return nil
	}
	attrs := append(addressOf(&rt.lease.origin), methodOf(e.r), semconv.NetworkProtocolVersion("1.1"),
		attrNamespace.String(e.call.namespace), attrWorker.String(rt.lease.ClientID), attrEpoch.Int64(rt.epoch))
	if l.ids {
		attrs = append(attrs, attrID.String(e.call.id))
	}
	if l.attempts == 0 { // the namespace is one that is served
		l.span.SetName("pinboard.proxy " + e.call.namespace)
		l.span.SetAttributes(semconv.HTTPRoute(e.call.namespace + "/{id}"))
	} else {
		attrs = append(attrs, semconv.HTTPRequestResendCount(l.attempts))
	}
	l.attempts++
	ctx, span := l.tracer.Start(l.ctx, "pinboard.attempt", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
	return &leg{ctx, span}
}

func addressOf(o *upstream.Origin) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(o.Addr)
	if err != nil {
		return nil
	}
	number, _ := strconv.Atoi(port)
	return []attribute.KeyValue{semconv.ServerAddress(host), semconv.ServerPort(number)}
}

// inject appends what tells the worker of the span.
func (g *leg) inject(fields []byte) []byte {
	if g == nil {
		return fields
	}
	carrier := fieldCarrier{fields}
	w3c.Inject(g.ctx, &carrier)
	return carrier.fields
}

// answered notes the head of a worker's answer.
func (g *leg) answered(resp *upstream.Response) {
	if g == nil {
		return
	}
	g.span.SetAttributes(semconv.HTTPResponseStatusCode(resp.Status))
	if resp.Status >= 400 {
		g.span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(resp.Status)))
		g.span.SetStatus(codes.Error, "")
	}
	switch reason := resp.Header.Get(wire.HeaderRefusal); reason {
	case "":
	case wire.RefusalLeaseUnhealthy, wire.RefusalExpired, wire.RefusalDraining, wire.RefusalClosing,
		wire.RefusalStaleEpoch, wire.RefusalReleasedEpoch, wire.RefusalCapacity, wire.RefusalActivationQueue:
		g.span.SetAttributes(attrRefusal.String(reason))
	default: // what it says may be anything
		g.span.SetAttributes(attrRefusal.String(endUnspecified))
	}
}

// note notes why something ended early.
func note(span trace.Span, reason string, fault bool) {
	if !fault {
		span.SetAttributes(attrEnd.String(reason))
		return
	}
	span.SetAttributes(semconv.ErrorTypeKey.String(reason))
	span.SetStatus(codes.Error, reason)
}

// failed notes that a worker has not answered.
func (g *leg) failed(e *exchange, a *attempt, err error) {
	if g == nil {
		return
	}
	reason, fault := endBody, false
	if !e.bodyFailed(a) {
		reason, fault = reasonOf(&a.flow, err)
	}
	note(g.span, reason, fault)
}

// spans are those that last as long as an answer does: the request's and its
// attempt's. They are zero where nothing is traced.
type spans struct{ request, attempt trace.Span }

// pair returns the spans of an attempt that was answered.
func (l *trail) pair(a *attempt) spans {
	if l == nil {
		return spans{}
	}
	return spans{l.span, a.leg.span}
}

// outlive is pair for a stream that goes on apart: nobody else ends its spans after
// that. It calls nothing of the host's.
func (l *trail) outlive(a *attempt) spans {
	pair := l.pair(a)
	if l != nil {
		l.apart, a.leg = true, nil
	}
	return pair
}

// relayed notes a worker's answer as the client got it; err is nil if that is whole.
func (s spans) relayed(e *exchange, a *attempt, err error) {
	if s.request == nil {
		return
	}
	e.trail.answered(a.resp.Status)
	if err != nil && e.bodyFailed(a) {
		s.note(endBody, false)
		return
	}
	s.cut(&a.flow, err)
}

// cut notes why what a worker sent has not come to its end, if it has not.
func (s spans) cut(f *flow, err error) {
	if s.request != nil && err != nil {
		s.note(reasonOf(f, err))
	}
}

func (s spans) note(reason string, fault bool) {
	note(s.request, reason, fault)
	note(s.attempt, reason, fault)
}

// tunnelled notes why a WebSocket ended, if it was not one of its ends that ended it.
func (s spans) tunnelled(t *tunnel) {
	if s.request == nil {
		return
	}
	s.request.SetAttributes(semconv.HTTPResponseStatusCode(http.StatusSwitchingProtocols))
	switch cause := t.flow.cause(); {
	case t.ending.Load() && t.flow.leases.streamsEnd():
		s.note(endNode, false)
	case t.ending.Load():
		s.note(endSilent, true)
	default:
		s.cut(t.flow, cause)
	}
}

// end ends the spans of a stream that goes on apart.
func (s spans) end() {
	if s.request != nil {
		s.attempt.End()
		s.request.End()
	}
}

// streamsEnd reports whether the node ends its streams, for it shuts down.
func (l *leases) streamsEnd() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ending
}

// end ends the span. It may be called twice.
func (g *leg) end() {
	if g != nil {
		g.span.End()
	}
}

// bodyFailed reports whether the client's body could not be read, and nothing else
// has ended the attempt.
func (e *exchange) bodyFailed(a *attempt) bool {
	return e.body != nil && e.body.Err() != nil && e.body.Err() != io.EOF && a.flow.cause() == nil
}

// reasonOf tells why a request to a worker failed, or its answer was not whole, and
// whether that is an error: the client's leaving is none, nor is this node's shutdown
// where a stream ends in good order.
func reasonOf(f *flow, err error) (reason string, fault bool) {
	cause := f.cause()
	_, unread := errors.AsType[*clientError](err)
	failure, ok := errors.AsType[*upstream.Error](err)
	switch {
	case errors.Is(cause, errStreamEnds):
		return endNode, false
	case errors.Is(cause, errOwnerEnded):
		return endOwner, true
	case errors.Is(cause, errNodeStops):
		return endNode, true
	case errors.Is(cause, errSilent):
		return endSilent, true
	case errors.Is(cause, errAnswerLate):
		return endTimeout, true
	case unread, errors.Is(cause, errClientGone), f.Context.Err() != nil:
		return endClient, false
	case errors.Is(err, errRouteOver):
		return endOutOfTime, true
	case ok && failure.NoConnection:
		return endNoConnect, true
	case errors.Is(err, upstream.ErrMalformedAnswer):
		return endMalformed, true
	case errors.Is(err, os.ErrDeadlineExceeded):
		return endTimeout, true
	}
	return endLost, true
}

// legKey is where a probe's context has its leg.
type legKey struct{}

// ask is prober.ask, traced: below the host's span of the registry's call if there
// is one.
func (t *traces) ask(ctx context.Context, p *prober, q probe) (from string, err error) {
	tracer := t.tracer()
	if tracer == nil {
		return p.ask(ctx, q)
	}
	origin := upstream.ParseOrigin(q.url)
	ctx, span := tracer.Start(ctx, "pinboard.probe", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(append(addressOf(&origin), semconv.HTTPRequestMethodGet)...))
	defer span.End()
	from, err = p.ask(context.WithValue(ctx, legKey{}, &leg{ctx, span}), q)
	if err != nil {
		ref := asRefusal(err)
		span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(ref.status)))
		span.SetStatus(codes.Error, ref.message)
	}
	return from, err
}

// legOf returns the leg of a probe's context, nil if there is none.
func legOf(ctx context.Context) *leg {
	g, _ := ctx.Value(legKey{}).(*leg)
	return g
}

// fieldCarrier writes header lines.
type fieldCarrier struct{ fields []byte }

// Get implements propagation.TextMapCarrier.
func (*fieldCarrier) Get(string) string { return "" }

// Set implements propagation.TextMapCarrier.
func (c *fieldCarrier) Set(key, value string) { c.fields = appendField(c.fields, key, value) }

// Keys implements propagation.TextMapCarrier.
func (*fieldCarrier) Keys() []string { return nil }

package pinboard

import (
	"encoding/hex"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

const (
	// maxMethod and maxRequestID are how much of what a client makes up is logged, in
	// bytes.
	maxMethod      = 32
	maxRequestID   = 128
	requestIDChars = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-./:=@_~"
	// accessMessage is the message of each line.
	accessMessage = "request"
)

// accessLog writes a line for requests of the data plane (Options.AccessLog). It is
// safe for concurrent use; a nil *accessLog writes nothing.
type accessLog struct {
	log     *zap.Logger
	proxies proxies
	sample  uint64
	went    atomic.Uint64 // requests that went well
}

func newAccessLog(opts *Options) *accessLog {
	if opts.AccessLog == nil {
		return nil
	}
	return &accessLog{log: opts.AccessLog, proxies: opts.TrustedProxies, sample: uint64(opts.AccessLogSample)}
}

// write tells of a request that has ended.
//
// Of what the client says it has nothing but names of what there is or might be, a
// method, an id that is shaped as one, and the client's address. Paths and queries
// are the application's, and may have secrets in them.
func (l *accessLog) write(o *observed) {
	if l == nil || o.went() && l.sample > 1 && l.went.Add(1)%l.sample != 1 {
		return
	}
	took := time.Since(o.began)
	entry := l.log.Check(zap.InfoLevel, accessMessage)
	if entry == nil {
		return
	}
	from := o.from
	if o.r != nil {
		from = l.origin(o.r)
	}
	fields := make([]zap.Field, 0, 24)
	fields = append(fields,
		zap.String("method", from.method),
		zap.String("namespace", o.instance.namespace), zap.String("id", o.instance.id),
		zap.Stringer("kind", o.kind), zap.Int("status", o.status),
		zap.Int64("bytesIn", o.in), zap.Int64("bytesOut", o.out),
		zap.Duration("took", took))
	if from.addr.IsValid() {
		fields = append(fields, zap.Stringer("address", from.addr))
	}
	if o.reason != reasonNone {
		fields = append(fields, zap.Stringer("refused", o.reason))
	} else {
		fields = append(fields, zap.Duration("firstByte", o.first))
	}
	if o.cut != cutNone {
		fields = append(fields, zap.Stringer("cut", o.cut))
	}
	if o.owner != nil {
		fields = append(fields, zap.String("client", o.owner.ClientID), zap.Int64("epoch", o.epoch))
	}
	if o.lookedUp {
		fields = append(fields, zap.Int("attempts", o.attempts), zap.Duration("resolve", o.resolving))
	}
	if o.caller != "" {
		fields = append(fields, zap.String("caller", o.caller))
	}
	if o.held {
		fields = append(fields, zap.Bool("held", true))
	}
	if from.request != "" {
		fields = append(fields, zap.String("request", from.request))
	}
	if from.trace != "" {
		fields = append(fields, zap.String("trace", from.trace))
	}
	entry.Write(fields...)
}

// origin is what is logged of a request itself, apart from what it asks for.
type origin struct {
	method, request, trace string
	addr                   netip.Addr
}

// origin reads it; of a nil log it is nothing.
func (l *accessLog) origin(r *http.Request) origin {
	if l == nil {
		return origin{}
	}
	return origin{
		method: firstOf(r.Method, maxMethod), request: requestID(r.Header), trace: traceID(r.Header), addr: l.proxies.sender(r).addr,
	}
}

func firstOf(text string, most int) string { return text[:min(len(text), most)] }

// requestID returns the client's X-Request-Id if it looks like one: what does not
// is not logged, for it could be anything.
func requestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	if len(id) > maxRequestID || strings.Trim(id, requestIDChars) != "" {
		return ""
	}
	return id
}

// traceID returns the trace id of a W3C traceparent, "" without a good one.
func traceID(h http.Header) string {
	parts := strings.Split(h.Get("Traceparent"), "-")
	if len(parts) < 4 || len(parts[1]) != 32 || parts[1] != strings.ToLower(parts[1]) || strings.Trim(parts[1], "0") == "" {
		return ""
	}
	if _, err := hex.DecodeString(parts[1]); err != nil {
		return ""
	}
	return parts[1]
}

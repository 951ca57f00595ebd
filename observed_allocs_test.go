//go:build !race && !leakcheck

package pinboard

import (
	"context"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/pinboard-go/pinboard/internal/allocs"
	"github.com/pinboard-go/pinboard/internal/store"
)

// Not parallel: it counts what the whole process allocates.
func TestObservingARequestAllocatesNothing(t *testing.T) {
	f := newFront(t, metered(prometheus.NewPedanticRegistry()))
	f.register(newFake(t, nil), "a")
	f.get("/counters/alice")
	r := rawRequest(http.MethodGet, "/counters/alice", http.Header{})
	owner := &lease{Session: store.Session{ClientID: "a"}}
	for name, c := range map[string]func(o *observed){
		"answered": func(o *observed) {
			o.sent()
			o.answered(200)
			o.wrote(100)
			o.owner = owner
		},
		"refused":  func(o *observed) { o.refused(errNoCandidate) },
		"cut":      func(o *observed) { o.answered(200); o.cut = cutClient },
		"panicked": func(*observed) {},
	} {
		for _, namespace := range []string{"/counters", "/nobody"} {
			named := instance{namespace, "alice"}
			if namespace == "/nobody" && name == "answered" {
				continue // that would be a namespace that is served
			}
			require.Zero(t, allocs.PerCall(t, func() {
				o := f.pb.observe(r)
				o.asked(named)
				c(o)
				if namespace == "/nobody" && o.reason == reasonNoWorker {
					o.reason = reasonUnknown
				}
				o.end()
			}), "%s %s", name, namespace)
		}
	}
}

// Not parallel: it counts what the whole process allocates.
func TestWithoutAProviderTracingAllocatesNothing(t *testing.T) {
	for name, opts := range map[string]Options{"none": {}, "noop": {TracerProvider: noop.NewTracerProvider()}} {
		traces := newTraces(&opts)
		e := &exchange{r: &http.Request{}, x: &proxy{p: &Pinboard{}}}
		v, c := &visit{r: e.r}, &e.call
		a := &attempt{}
		fields := make([]byte, 0, 10)
		n := allocs.PerCall(t, func() {
			l := traces.enter()
			l.begin(v, c, nil)
			_ = l.strip(e.r)
			l.waits()
			l.waited(nil)
			g := l.attempt(e, route{})
			_ = g.inject(fields)
			g.answered(nil)
			g.failed(e, a, context.Canceled)
			l.answered(200)
			l.refused(nil)
			l.pair(a).relayed(e, a, context.Canceled)
			l.pair(a).tunnelled(nil)
			l.outlive(a).end()
			g.end()
			l.end()
		})
		require.Zero(t, n, name)
		require.Nil(t, traces.tracer(), name)
	}
}

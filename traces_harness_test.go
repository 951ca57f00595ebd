package pinboard

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// traced is a front with a provider that keeps every span that has ended.
type traced struct {
	*front
	spans *tracetest.SpanRecorder
}

func newTraced(t *testing.T, changes ...func(*setup)) *traced {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	with := func(s *setup) { s.opts.TracerProvider = provider }
	return &traced{newFront(t, append([]func(*setup){with}, changes...)...), spans}
}

// ended waits for so many spans to have ended, and returns them in the order in
// which they began.
func (f *traced) ended(n int) spansSeen {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return len(f.spans.Ended()) >= n }, patience, time.Millisecond)
	require.Len(f.t, f.spans.Ended(), n, "%v", spansSeen(f.spans.Ended()).names())
	ended := map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, s := range f.spans.Ended() {
		ended[s.SpanContext().SpanID()] = s
	}
	var all spansSeen
	for _, s := range f.spans.Started() {
		if s, ok := ended[s.SpanContext().SpanID()]; ok {
			all = append(all, s)
		}
	}
	f.spans.Reset()
	return all
}

type spansSeen []sdktrace.ReadOnlySpan

func (s spansSeen) names() (names []string) {
	for _, one := range s {
		names = append(names, one.Name())
	}
	return names
}

// attrs returns what a span tells, as text.
func attrs(s sdktrace.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes() {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

// failedAs returns the error.type of a span that has failed, "" for one that has
// not.
func failedAs(t *testing.T, s sdktrace.ReadOnlySpan) string {
	t.Helper()
	kind := attrs(s)["error.type"]
	require.Equal(t, kind != "", s.Status().Code == codes.Error, "%s %v", s.Name(), attrs(s))
	return kind
}

// text is everything that spans tell.
func (s spansSeen) text() string {
	var b strings.Builder
	for _, one := range s {
		fmt.Fprintln(&b, one.Name(), attrs(one), one.Status(), one.Events(), one.Links())
	}
	return b.String()
}

var parentForm = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// requireParent checks that a worker was told of the span, once.
func (h *hit) requireParent(s sdktrace.ReadOnlySpan) {
	h.t.Helper()
	require.Len(h.t, h.header["Traceparent"], 1, h.head)
	require.Regexp(h.t, parentForm, h.header.Get("Traceparent"))
	sc := s.SpanContext()
	require.Equal(h.t, fmt.Sprintf("00-%s-%s-%s", sc.TraceID(), sc.SpanID(), sc.TraceFlags()), h.header.Get("Traceparent"))
}

const (
	clientTrace  = "0af7651916cd43dd8448eb211c80319c"
	clientParent = "00-" + clientTrace + "-b7ad6b7169203331-01"
)

package pinboard

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scrape reads all series as a Prometheus would: counters and gauges by their
// name and labels, of a histogram its count.
func scrape(t testing.TB, from prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	series := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := family.GetName()
			suffix := ""
			if len(labels) > 0 {
				suffix = "{" + strings.Join(labels, ",") + "}"
			}
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				series[name+suffix] = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				series[name+suffix] = m.GetGauge().GetValue()
			case dto.MetricType_HISTOGRAM:
				series[name+"_count"+suffix] = float64(m.GetHistogram().GetSampleCount())
			default:
				require.Fail(t, "unexpected type", family.String())
			}
		}
	}
	return series
}

// metered has a front register its metrics on a registry that checks what it
// collects.
func metered(registry *prometheus.Registry) func(*setup) {
	return func(s *setup) { s.opts.Metrics = registry }
}

// watched tells what the series of a registry whose names have a prefix have
// gained.
type watched struct {
	t      *testing.T
	from   prometheus.Gatherer
	before map[string]float64
}

func watch(t *testing.T, from prometheus.Gatherer) *watched {
	return &watched{t, from, scrape(t, from)}
}

// gained returns by how much series have changed since it was last called, without
// those that have not.
func (w *watched) gained(prefixes ...string) map[string]float64 {
	w.t.Helper()
	now := scrape(w.t, w.from)
	gained := maps.Clone(now)
	for name, value := range w.before {
		gained[name] -= value
	}
	w.before = now
	return only(gained, prefixes...)
}

// only returns the series with one of the prefixes that are not 0.
func only(series map[string]float64, prefixes ...string) map[string]float64 {
	out := map[string]float64{}
	for name, value := range series {
		if value != 0 && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			out[name] = value
		}
	}
	return out
}

// becomes waits until the series have gained what is wanted: a request has ended
// for its client a moment before it has for the node.
func (w *watched) becomes(want map[string]float64, prefixes ...string) {
	w.t.Helper()
	before, gained := w.before, map[string]float64(nil)
	if !assert.Eventually(w.t, func() bool {
		w.before = before
		gained = w.gained(prefixes...)
		return maps.Equal(want, gained)
	}, patience, time.Millisecond) {
		require.Equal(w.t, want, gained)
	}
}

// ends are the series of how requests have ended.
var ends = []string{"pinboard_requests_total", "pinboard_first_byte_seconds", "pinboard_refusals_total", "pinboard_cuts_total"}

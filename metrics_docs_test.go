package pinboard

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
)

// section returns a section of docs/monitoring.md, without its heading.
func section(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("docs", "monitoring.md"))
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, found, heading)
	body, _, _ := strings.Cut(after, "\n## ")
	return body
}

// rows returns the cells of all tables, but for their heads.
func rows(section string) (table [][]string) {
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		table = append(table, cells)
	}
	return table
}

var quoted = regexp.MustCompile("`([^`]+)`")

// quotedIn returns what is in backquotes.
func quotedIn(cell string) (list []string) {
	for _, found := range quoted.FindAllStringSubmatch(cell, -1) {
		list = append(list, found[1])
	}
	return list
}

func TestTheTableOfMetricsIsWhatIsRegistered(t *testing.T) {
	t.Parallel()
	type metric struct {
		kind   string
		labels []string
	}
	told := map[string]metric{}
	for _, row := range rows(section(t, "Metrics")) {
		for _, name := range quotedIn(row[0]) {
			if strings.HasPrefix(name, "PINBOARD_") {
				continue
			}
			require.NotContains(t, told, name)
			labels := quotedIn(row[2])
			slices.Sort(labels)
			told[name] = metric{row[1], labels}
		}
	}
	registry := prometheus.NewPedanticRegistry()
	n := newRegNode(t, Options{Metrics: registry}, nil)
	n.worker().register()
	families, err := registry.Gather()
	require.NoError(t, err)
	have := map[string]metric{}
	values := map[string]bool{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
				values[family.GetName()+" "+l.GetName()+" "+l.GetValue()] = true
			}
			have[family.GetName()] = metric{strings.ToLower(family.GetType().String()), labels}
		}
	}
	require.Equal(t, have, told)
	// Each value of a label that is told of is one, and each of some is told of.
	text := section(t, "Metrics") + section(t, "Why a request is refused")
	for series := range values {
		of := strings.Split(series, " ")
		switch of[0] {
		case "pinboard_cuts_total", "pinboard_resolves_total", "pinboard_placements_total", "pinboard_probe_seconds",
			"pinboard_heartbeats_total", "pinboard_workers", "pinboard_requests_total", "pinboard_refusals_total":
			if of[1] == "namespace" || of[1] == "code" {
				continue
			}
			require.Contains(t, text, "`"+of[2]+"`", series)
		}
	}
}

func TestTheTableOfReasonsIsWhole(t *testing.T) {
	t.Parallel()
	var told []string
	for _, row := range rows(section(t, "Why a request is refused")) {
		told = append(told, quotedIn(row[0])...)
	}
	require.ElementsMatch(t, reasonNames[1:], told)
}

func TestTheTableOfTheAccessLogIsWhatIsWritten(t *testing.T) {
	t.Parallel()
	log := &accessLines{t: t}
	l := &accessLog{log: log.logger(zap.InfoLevel), sample: 1}
	r := rawRequest(http.MethodGet, "/", http.Header{
		"X-Request-Id": {"r"}, "Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	})
	whole := observed{
		r: r, cut: cutWorker, owner: &lease{Session: store.Session{ClientID: "c"}}, epoch: 1, caller: "/a/b", held: true, lookedUp: true,
	}
	refused := whole
	refused.reason = reasonNoWorker
	l.write(&whole)
	l.write(&refused)
	written := map[string]bool{}
	for _, line := range log.read(2) {
		for name := range line {
			written[name] = true
		}
	}
	for _, name := range []string{"level", "ts", "msg"} { // the logger's own
		delete(written, name)
	}
	told := map[string]bool{}
	for _, row := range rows(section(t, "The access log")) {
		for _, name := range quotedIn(row[0]) {
			if !strings.HasPrefix(name, "PINBOARD_") {
				told[name] = true
			}
		}
	}
	require.Equal(t, written, told)
}

func TestTheVariablesOfMetricsAndAccessLogAreTold(t *testing.T) {
	t.Parallel()
	standard := map[string]map[string]string{}
	for _, heading := range []string{"Metrics", "The access log"} {
		standard[heading] = map[string]string{}
		for _, row := range rows(section(t, heading)) {
			if name := quotedIn(row[0])[0]; strings.HasPrefix(name, "PINBOARD_") {
				standard[heading][name] = row[2]
			}
		}
	}
	require.Equal(t, map[string]map[string]string{
		"Metrics":        {"PINBOARD_METRICS_ADDR": "none: they are not served"},
		"The access log": {"PINBOARD_ACCESS_LOG": "false", "PINBOARD_ACCESS_LOG_SAMPLE": "1"},
	}, standard)
}

// Kinds have room in a tally, and one name each.
func TestKindsHaveNames(t *testing.T) {
	t.Parallel()
	for of, list := range map[string][]string{
		"requests": requestKinds, "look-ups": founds, "causes": causes, "markers": markers, "reasons": reasonNames, "cuts": cuts,
		"limits": limitNames, "probes": probeOutcomes,
	} {
		require.LessOrEqual(t, len(list), maxKinds, of)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(list))), len(list), of)
	}
	for of, counts := range map[string][2]int{
		"requests": {len(requestKinds), int(kindCluster) + 1}, "look-ups": {len(founds), int(foundOther) + 1},
		"causes": {len(causes), int(causeRefused) + 1}, "reasons": {len(reasonNames), int(reasonOther) + 1},
		"cuts": {len(cuts), int(cutWorker) + 1}, "limits": {len(limitNames), int(limitInstances) + 1},
		"probes": {len(probeOutcomes), int(probeBadAnswer) + 1},
	} {
		require.Equal(t, counts[1], counts[0], of)
	}
}

package deploy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const monitoring = root + "/examples/monitoring"

// promtool runs Prometheus' own tool in a directory.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestPrometheusTakesTheConfigurationAndTheRulesKeepTheirTests(t *testing.T) {
	t.Parallel()
	promtool(t, monitoring, "check", "config", "prometheus.yaml")
	promtool(t, monitoring, "check", "rules", "--lint-fatal", "rules.yaml")
	promtool(t, monitoring, "test", "rules", "rules.test.yaml")
}

// What is collected from are the nodes of the compose file, which tell their metrics
// there, as those of Kubernetes do.
func TestNodesTellTheirMetricsWhereTheyAreCollected(t *testing.T) {
	t.Parallel()
	var config struct {
		Jobs []struct {
			Name    string                       `json:"job_name"`
			Configs []struct{ Targets []string } `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "examples/monitoring/prometheus.yaml")), &config))
	require.Equal(t, "pinboard", config.Jobs[0].Name, "the rules name it")
	services := project(t).Services
	for _, target := range config.Jobs[0].Configs[0].Targets {
		name, port, _ := strings.Cut(target, ":")
		require.Equal(t, ":"+port, variables(services[name])["PINBOARD_METRICS_ADDR"], target)
		for _, p := range services[name].Ports {
			require.NotEqual(t, port, fmt.Sprint(p.Target), "it is not for everybody")
		}
	}
	container := pods(objects(t, "base"))["pinboard"].Spec.Containers[0]
	require.EqualValues(t, 9090, container.Ports[1].ContainerPort)
	require.Equal(t, "metrics", container.Ports[1].Name)
	for _, e := range container.Env {
		if e.Name == "PINBOARD_METRICS_ADDR" {
			require.Equal(t, ":9090", e.Value)
			return
		}
	}
	require.Fail(t, "PINBOARD_METRICS_ADDR is not set")
}

// exports are the metrics of a server that a worker has registered with: the values
// of each label by metric. Those of histograms are there as they are stored.
type exports map[string]map[string][]string

// exported runs the standalone server and collects from it.
func exported(t *testing.T) exports {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "pinboard")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/pinboard")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	server := exec.CommandContext(t.Context(), binary)
	server.Env = []string{
		"REDIS_URL=memory:", "PORT=0", "PINBOARD_METRICS_ADDR=127.0.0.1:0",
		`PINBOARD_PASSPORT={"providers":[{"type":"staticToken","id":"p","keys":[{"name":"k","token":"token-of-a-test",
		"scopes":["pinboard:worker"],"claims":{"pinboard":{"namespaces":["*"],"allowedBackendHosts":["*"]}}}]}]}`,
	}
	log, err := server.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	addrs := map[string]string{}
	for lines := bufio.NewScanner(log); len(addrs) < 2 && lines.Scan(); {
		var entry struct{ Msg, Addr string }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &entry))
		if entry.Addr != "" {
			addrs[entry.Msg] = entry.Addr[strings.LastIndexByte(entry.Addr, ':'):]
		}
	}
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"value":"v"}`)) }))
	t.Cleanup(worker.Close)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1"+addrs["listening"]+"/registry/register", strings.NewReader(
		`{"clientId":"c","secret":"s","namespaces":["/a"],"advertiseUrl":"`+worker.URL+`","headroom":1,"draining":false,"challenge":"c","challengeValue":"v"}`))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer token-of-a-test")
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	return collect(t, "http://127.0.0.1"+addrs["metrics are told"]+"/metrics")
}

func collect(t *testing.T, url string) exports {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	require.NoError(t, err)
	have := exports{"up": {"job": {"pinboard"}, "instance": nil}}
	for name, family := range families {
		suffixes := []string{""}
		if family.GetType() == dto.MetricType_HISTOGRAM {
			suffixes = []string{"_bucket", "_count", "_sum"}
		}
		for _, suffix := range suffixes {
			values := map[string][]string{"job": nil, "instance": nil, "le": nil}
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					values[l.GetName()] = append(values[l.GetName()], l.GetValue())
				}
			}
			have[name+suffix] = values
		}
	}
	return have
}

var (
	selector = regexp.MustCompile(`\b([a-z_]+)\{([^}]*)\}`)
	named    = regexp.MustCompile(`\b(?:pinboard|process|go|pinned)_[a-z_]+`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on|without)\s*\(([^)]*)\)`)
)

// check returns an error for an expression that names what is not there: metrics,
// their labels, and the values that it compares those with, but for namespaces.
func (have exports) check(expr string, variables map[string]bool) error {
	labels := map[string]bool{"job": true, "instance": true}
	for _, name := range named.FindAllString(expr, -1) {
		if have[name] == nil {
			return fmt.Errorf("no metric %s: %s", name, expr)
		}
		for label := range have[name] {
			labels[label] = true
		}
	}
	for _, found := range selector.FindAllStringSubmatch(expr, -1) {
		for _, m := range matcher.FindAllStringSubmatch(found[2], -1) {
			values, ok := have[found[1]][m[1]]
			if !ok {
				return fmt.Errorf("%s has no label %s: %s", found[1], m[1], expr)
			}
			if name, ok := strings.CutPrefix(m[3], "$"); ok {
				if !variables[name] {
					return fmt.Errorf("no variable %s: %s", name, expr)
				}
				continue
			}
			for part := range strings.SplitSeq(m[3], "|") {
				if m[1] != "namespace" && values != nil && !slices.Contains(values, part) {
					return fmt.Errorf("%s is never %s=%q: %s", found[1], m[1], part, expr)
				}
			}
		}
	}
	for _, found := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(found[1], ",") {
			if !labels[strings.TrimSpace(label)] {
				return fmt.Errorf("no label %s: %s", label, expr)
			}
		}
	}
	return nil
}

// ruleFile is what is looked at of the rules, and of their tests.
type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr         string
			For                 string
			Labels, Annotations map[string]string
		}
	}
}

func TestEachAlertNamesWhatIsThereAndWhatToDo(t *testing.T) {
	t.Parallel()
	have := exported(t)
	var rules ruleFile
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "examples/monitoring/rules.yaml")), &rules))
	var tests struct {
		Tests []struct {
			Alerts []struct {
				Name string           `json:"alertname"`
				Exp  []map[string]any `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "examples/monitoring/rules.test.yaml")), &tests))
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, a := range test.Alerts {
			fires[a.Name], rests[a.Name] = fires[a.Name] || len(a.Exp) > 0, rests[a.Name] || len(a.Exp) == 0
		}
	}
	doc := read(t, "docs/monitoring.md")
	explained := regexp.MustCompile(`(?m)^### (Pinboard\w+)$`).FindAllStringSubmatch(doc, -1)
	var names []string
	for _, rule := range rules.Groups[0].Rules {
		names = append(names, rule.Alert)
		require.NoError(t, have.check(rule.Expr, nil))
		require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		require.Equal(t, "docs/monitoring.md#"+strings.ToLower(rule.Alert), rule.Annotations["runbook"])
		require.Contains(t, []string{"critical", "warning"}, rule.Labels["severity"], rule.Alert)
		require.True(t, fires[rule.Alert], "no test has %s fire", rule.Alert)
	}
	require.NotEmpty(t, names)
	var told []string
	for _, e := range explained {
		told = append(told, e[1])
	}
	require.ElementsMatch(t, names, told, "docs/monitoring.md explains other alerts")
	for _, name := range []string{"PinboardNodeDown", "PinboardNoWorkers", "PinboardStoreDown", "PinboardRefusals", "PinboardServerErrors"} {
		require.True(t, rests[name], "no test has %s rest", name)
	}
}

// dashboard is what is looked at of Grafana's model.
type dashboard struct {
	Templating struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Panels []struct {
		ID          int
		Type, Title string
		GridPos     struct{ X, Y, W, H int }
		Datasource  *struct{ Type, UID string }
		Targets     []struct{ RefID, Expr, LegendFormat string }
		FieldConfig struct{ Defaults struct{ Unit string } }
		Description string
	}
}

func TestTheDashboardShowsWhatIsThere(t *testing.T) {
	t.Parallel()
	have := exported(t)
	var d dashboard
	require.NoError(t, json.Unmarshal([]byte(read(t, "examples/monitoring/dashboard.json")), &d))
	variables := map[string]bool{}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if query, ok := v.Query.(map[string]any); ok {
			text := query["query"].(string)
			require.NoError(t, have.check(text, variables))
			of := regexp.MustCompile(`^label_values\(([a-z_]+)(?:\{.*\})?, ([a-z]+)\)$`).FindStringSubmatch(text)
			require.NotNil(t, of, text)
			require.Contains(t, have[of[1]], of[2], text)
		}
	}
	require.True(t, variables["datasource"])
	ids, taken, shown := map[int]bool{}, map[[2]int]string{}, map[string]bool{}
	var exprs []string
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "panel %d is there twice", p.ID)
		ids[p.ID] = true
		require.NotEmpty(t, p.Title)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, taken[[2]int{x, y}], "%s lies on another", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			require.NoError(t, have.check(target.Expr, variables), p.Title)
			exprs = append(exprs, target.Expr)
			for _, name := range named.FindAllString(target.Expr, -1) {
				shown[strings.NewReplacer("_bucket", "", "_count", "", "_sum", "").Replace(name)] = true
			}
			for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				require.Regexp(t, `by \([^)]*\b`+label[1]+`\b|^[^(]*\{|^rate\(`, target.Expr, "the legend of %s", p.Title)
			}
		}
	}
	for name := range have {
		name = strings.NewReplacer("_bucket", "", "_count", "", "_sum", "").Replace(name)
		if strings.HasPrefix(name, "pinboard_") && name != "pinboard_connections_turned_away_total" {
			require.True(t, shown[name], "no panel shows %s", name)
		}
	}
	requireExpressions(t, exprs)
}

// requireExpressions has Prometheus read the expressions, as Grafana would send
// them.
func requireExpressions(t *testing.T, exprs []string) {
	t.Helper()
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for i, expr := range exprs {
		expr = strings.NewReplacer("$__rate_interval", "1m", "$job", "j", "$instance", ".*", "$namespace", ".*").Replace(expr)
		require.NotContains(t, expr, "$")
		fmt.Fprintf(&rules, "  - {record: 'panel:%d', expr: '%s'}\n", i, strings.ReplaceAll(expr, "'", "''"))
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(rules.String()), 0o600))
	promtool(t, dir, "check", "rules", "rules.yaml")
}

func TestAnExpressionThatNamesWhatIsNotThereIsFound(t *testing.T) {
	t.Parallel()
	have := exports{"pinboard_x_total": {"kind": {"a", "b"}, "instance": nil}}
	for expr, good := range map[string]bool{
		`sum by (kind) (rate(pinboard_x_total{kind=~"a|b"}[1m]))`: true, `pinboard_x_total{instance=~"$instance"}`: true,
		`pinboard_y_total`: false, `pinboard_x_total{kind="c"}`: false, `pinboard_x_total{kind=~"a|c"}`: false, `pinboard_x_total{sort="a"}`: false,
		`sum by (sort) (pinboard_x_total)`: false, `pinboard_x_total{instance=~"$node"}`: false,
	} {
		require.Equal(t, good, have.check(expr, map[string]bool{"instance": true}) == nil, expr)
	}
}

package deploy

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
	"github.com/pinboard-go/pinboard/worker"
)

// requireWorker requires a Go worker to be content with its variables. They are
// set for the process, so that its test is not parallel.
func requireWorker(t *testing.T, env map[string]string) {
	t.Helper()
	for name, value := range env {
		t.Setenv(name, value)
	}
	_, err := worker.New(worker.Options{})
	require.NoError(t, err)
}

// requireAllowed requires a worker's key and advertise URL to be what a node's
// passport allows.
func requireAllowed(t *testing.T, node, env map[string]string) {
	t.Helper()
	pass, err := passport.Parse([]byte(node["PINBOARD_PASSPORT"]), func(name string) (string, bool) {
		value, ok := node[name]
		return value, ok
	})
	require.NoError(t, err)
	who, err := pass.Identify(t.Context(), bearing(t, env["PINBOARD_TOKEN"]))
	require.NoError(t, err)
	require.NotNil(t, who, "the worker's token is none of the passport's")
	require.True(t, who.HasScope(passport.ScopeWorker))
	require.False(t, who.HasScope(passport.ScopeOperator))
	require.True(t, who.AllowsNamespace("/counters"))
	rules, err := passport.ParseBackendRules(who.BackendHosts())
	require.NoError(t, err)
	require.True(t, rules.AllowsURLHost(hostOf(t, env["ADVERTISE_URL"])), env["ADVERTISE_URL"])
	require.False(t, rules.AllowsURLHost("169.254.169.254"))
	require.False(t, rules.AllowsURLHost("redis"))
}

func project(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "examples/compose/compose.yaml")}, cli.WithDiscardEnvFile)
	require.NoError(t, err)
	p, err := options.LoadProject(t.Context()) // checks it by the specification's schema
	require.NoError(t, err)
	return p
}

func variables(s types.ServiceConfig) map[string]string {
	env := map[string]string{}
	for name, value := range s.Environment {
		env[name] = *value
	}
	return env
}

func TestTheComposeFileFitsTheSpecificationAndItself(t *testing.T) {
	p := project(t)
	require.ElementsMatch(t, []string{"redis", "pinboard-1", "pinboard-2", "counter-1", "counter-2", "python"}, p.ServiceNames())
	for _, name := range []string{"pinboard-1", "pinboard-2"} {
		s := p.Services[name]
		requireNode(t, variables(s))
		require.Equal(t, []string{"nodes"}, s.Networks["default"].Aliases)
		require.Equal(t, "127.0.0.1", s.Ports[0].HostIP)
		require.EqualValues(t, 8080, s.Ports[0].Target)
		require.Greater(t, time.Duration(*s.StopGracePeriod), nodeShutdown)
		require.Equal(t, types.ServiceConditionHealthy, s.DependsOn["redis"].Condition)
	}
	require.NotEqual(t, p.Services["pinboard-1"].Ports[0].Published, p.Services["pinboard-2"].Ports[0].Published)
	node := variables(p.Services["pinboard-1"])
	known := reads(t, "worker/settings.go", "examples/counter/main.go")
	for _, name := range []string{"counter-1", "counter-2"} {
		env := variables(p.Services[name])
		for variable := range env {
			require.True(t, known[variable], "nobody reads %s", variable)
		}
		requireWorker(t, env)
		requireAllowed(t, node, env)
		require.Equal(t, name, hostOf(t, env["ADVERTISE_URL"]), "the name of the service is its address")
		require.Equal(t, "./examples/counter", *p.Services[name].Build.Args["PACKAGE"])
		require.Greater(t, time.Duration(*p.Services[name].StopGracePeriod), workerGrace)
	}
	requireAllowed(t, node, variables(p.Services["python"]))
	require.Equal(t, "python", hostOf(t, variables(p.Services["python"])["ADVERTISE_URL"]))
	for _, s := range p.Services {
		if s.Build == nil {
			continue
		}
		require.FileExists(t, filepath.Join(s.Build.Context, s.Build.Dockerfile))
		require.Contains(t, s.CapDrop, "ALL", s.Name)
		require.True(t, s.ReadOnly, s.Name)
	}
}

package pinboard

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const envPassport = `{"providers":[{"type":"staticToken","id":"p","keys":[{"name":"k","token":{"env":"PINBOARD_TOKEN"},` +
	`"scopes":["pinboard:worker"],"claims":{"pinboard":{"namespaces":["*"],"allowedBackendHosts":["*"]}}}]}],` +
	`"namespaces":{"*":{"allow":"anonymous"}}}`

// variables returns a look-up over the base environment with changes; a value
// of "-" takes a variable away.
func variables(changes map[string]string) func(string) (string, bool) {
	env := map[string]string{
		"PINBOARD_PASSPORT": envPassport,
		"PINBOARD_TOKEN":    "planted-token-of-a-deployment",
		"REDIS_URL":         "memory:",
	}
	for name, value := range changes {
		if value == "-" {
			delete(env, name)
			continue
		}
		env[name] = value
	}
	return func(name string) (string, bool) { value, ok := env[name]; return value, ok }
}

func TestEnvironmentDefaults(t *testing.T) {
	t.Parallel()
	env, err := ReadEnvironment(variables(nil))
	require.NoError(t, err)
	require.Equal(t, uint16(8080), env.Port)
	require.Equal(t, 15*time.Second, env.Options.LeaseTTL)
	require.InDelta(t, 2, env.Options.Affinity.BalanceFactor, 0)
	require.Zero(t, env.Options.PlacementHold)
	require.Empty(t, env.Options.TrustedProxies)
	require.Empty(t, env.CertFile+env.KeyFile)
	require.False(t, env.H2C)
	require.Empty(t, env.MetricsAddr)
	require.False(t, env.AccessLog)
	require.Equal(t, 1, env.Options.AccessLogSample)
	require.Equal(t, time.Second, env.ShutdownDelay)
	require.NotNil(t, env.Options.Store)
	require.Nil(t, env.Redis)
	pb, err := New(env.Options)
	require.NoError(t, err)
	require.NoError(t, pb.Close())
}

func TestEnvironmentValues(t *testing.T) {
	t.Parallel()
	env, err := ReadEnvironment(variables(map[string]string{
		"PORT":                             "0",
		"PINBOARD_LEASE_TTL_MS":            "1500",
		"PINBOARD_PLACEMENT_HOLD_MS":       "2500",
		"PINBOARD_AFFINITY_BALANCE_FACTOR": "1.5",
		"PINBOARD_DRAIN_RATE":              "2.5",
		"PINBOARD_METRICS_ADDR":            "[::1]:9090",
		"PINBOARD_ACCESS_LOG":              "true",
		"PINBOARD_ACCESS_LOG_SAMPLE":       "100",
		"PINBOARD_SHUTDOWN_DELAY_MS":       "0",
		"PINBOARD_MAX_HELD":                "20",
		"PINBOARD_MAX_HELD_PER_ID":         "10",
		"PINBOARD_REPLAY_BUFFER":           "1000",
		"PINBOARD_KEY_PREFIX":              "other",
		"PINBOARD_SHARDS":                  "4",
		"PINBOARD_TRUSTED_PROXIES":         " 10.0.0.7/8, ::1 ,192.0.2.1,",
		"REDIS_URL":                        "rediss://user:pa%40ss@one.example:7001,two.example,[2001:db8::1]:7003/0?master_set=main&sentinel_password=pa%26ss",
	}))
	require.NoError(t, err)
	require.Zero(t, env.Port)
	require.Equal(t, 1500*time.Millisecond, env.Options.LeaseTTL)
	require.Equal(t, 2500*time.Millisecond, env.Options.PlacementHold)
	require.InDelta(t, 1.5, env.Options.Affinity.BalanceFactor, 0)
	require.InDelta(t, 2.5, env.Options.DrainRate, 0)
	require.Equal(t, "[::1]:9090", env.MetricsAddr)
	require.True(t, env.AccessLog)
	require.Equal(t, 100, env.Options.AccessLogSample)
	require.Zero(t, env.ShutdownDelay)
	require.Equal(t, 20, env.Options.MaxHeld)
	require.Equal(t, 10, env.Options.MaxHeldPerID)
	require.Equal(t, 1000, env.Options.ReplayBuffer)
	require.Equal(t, "other", env.Options.KeyPrefix)
	require.Equal(t, 4, env.Options.Shards)
	require.Equal(t, []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("192.0.2.1/32"),
	}, env.Options.TrustedProxies)
	require.Equal(t, []string{"one.example:7001", "two.example:6379", "[2001:db8::1]:7003"}, env.Redis.InitAddress)
	require.Equal(t, "user", env.Redis.Username)
	require.Equal(t, "pa@ss", env.Redis.Password)
	require.Equal(t, "main", env.Redis.Sentinel.MasterSet)
	require.Empty(t, env.Redis.Sentinel.Username)
	require.Equal(t, "pa&ss", env.Redis.Sentinel.Password)
	require.Equal(t, env.Redis.TLSConfig, env.Redis.Sentinel.TLSConfig)
	require.Positive(t, env.Redis.Sentinel.TopologyRefreshInterval, "the message of a failover may be lost")
	require.Positive(t, env.Redis.ClusterOption.ShardsRefreshInterval)
	require.NotNil(t, env.Redis.TLSConfig)
	require.Empty(t, env.Redis.TLSConfig.ServerName, "each node's certificate is for its own name")
}

func TestOneSentinelsNameIsNotItsMasters(t *testing.T) {
	t.Parallel()
	env, err := ReadEnvironment(variables(map[string]string{"REDIS_URL": "rediss://sentinel.example?master_set=main"}))
	require.NoError(t, err)
	require.NotNil(t, env.Redis.Sentinel.TLSConfig)
	require.Empty(t, env.Redis.TLSConfig.ServerName)
}

func TestRedisURLWithoutAPortMeansTheDefaultPort(t *testing.T) {
	t.Parallel()
	env, err := ReadEnvironment(variables(map[string]string{"REDIS_URL": "redis://cache.example/3"}))
	require.NoError(t, err)
	require.Equal(t, []string{"cache.example:6379"}, env.Redis.InitAddress)
	require.Equal(t, 3, env.Redis.SelectDB)
}

func TestAWrongVariableIsOneLineThatNamesIt(t *testing.T) {
	t.Parallel()
	for i, test := range []struct{ name, value string }{
		{"PINBOARD_PASSPORT", "-"},
		{"PINBOARD_PASSPORT", "  "},
		{"PINBOARD_PASSPORT", "{"},
		{"PINBOARD_PASSPORT", strings.ReplaceAll(envPassport, "staticToken", "magic")},
		{"PINBOARD_PASSPORT", strings.ReplaceAll(envPassport, "PINBOARD_TOKEN", "UNSET")},
		{"REDIS_URL", "-"},
		{"REDIS_URL", "memory"},
		{"REDIS_URL", "http://planted-password@h:1"},
		{"REDIS_URL", "redis://"},
		{"REDIS_URL", "redis://:planted-password@h:port"},
		{"REDIS_URL", "redis://:planted-password@h:1/x"},
		{"REDIS_URL", "redis://:planted-password@h:1,,i:2"},
		{"REDIS_URL", "redis://h:1/x?master_set=m&sentinel_password=planted-password"},
		{"REDIS_URL", "redis://h:99999"},
		{"REDIS_URL", "redis://h:0"},
		{"REDIS_URL", "redis://h:1,i:99999"},
		{"REDIS_URL", "redis://h?foo=bar"},
		{"REDIS_URL", "redis://h?master_sett=main"},
		{"REDIS_URL", "redis://h?master_set="},
		{"REDIS_URL", "redis://h?sentinel_user=u"},
		{"REDIS_URL", "redis://h?master_set=m&sentinel_password=planted;password"},
		{"REDIS_URL", "redis://h?protocol=2"},
		{"REDIS_URL", "redis://h/-1"},
		{"REDIS_URL", "redis://h/0#planted"},
		{"PINBOARD_KEY_PREFIX", "{a}"},
		{"PINBOARD_SHARDS", "0"},
		{"PINBOARD_SHARDS", "1025"},
		{"PINBOARD_REPLAY_BUFFER", "-1"},
		{"PINBOARD_MAX_HELD", "0"},
		{"PINBOARD_MAX_HELD_PER_ID", "1001"},
		{"PORT", "http"},
		{"PORT", "65536"},
		{"PORT", "-1"},
		{"PINBOARD_METRICS_ADDR", "9090"},
		{"PINBOARD_METRICS_ADDR", ":metrics"},
		{"PINBOARD_METRICS_ADDR", ":65536"},
		{"PINBOARD_ACCESS_LOG", "yes"},
		{"PINBOARD_ACCESS_LOG_SAMPLE", "0"},
		{"PINBOARD_ACCESS_LOG_SAMPLE", "1.5"},
		{"PINBOARD_SHUTDOWN_DELAY_MS", "-1"},
		{"PINBOARD_SHUTDOWN_DELAY_MS", "15001"},
		{"PINBOARD_SHUTDOWN_DELAY_MS", "1s"},
		{"PORT", "80.5"},
		{"PINBOARD_LEASE_TTL_MS", "15s"},
		{"PINBOARD_LEASE_TTL_MS", "0"},
		{"PINBOARD_LEASE_TTL_MS", "NaN"},
		{"PINBOARD_PLACEMENT_HOLD_MS", "5s"},
		{"PINBOARD_PLACEMENT_HOLD_MS", "-1"},
		{"PINBOARD_PLACEMENT_HOLD_MS", "60001"},
		{"PINBOARD_AFFINITY_BALANCE_FACTOR", "0.5"},
		{"PINBOARD_AFFINITY_BALANCE_FACTOR", "Inf"},
		{"PINBOARD_AFFINITY_BALANCE_FACTOR", "many"},
		{"PINBOARD_DRAIN_RATE", "-1"},
		{"PINBOARD_DRAIN_RATE", "0.0001"},
		{"PINBOARD_DRAIN_RATE", "fast"},
		{"PINBOARD_TRUSTED_PROXIES", "10.0.0.0/8, example.com"},
		{"PINBOARD_TRUSTED_PROXIES", "10.0.0.0/33"},
		{"PINBOARD_H2C", "yes"},
	} {
		t.Run(fmt.Sprint(i, " ", test.name), func(t *testing.T) {
			t.Parallel()
			_, err := ReadEnvironment(variables(map[string]string{test.name: test.value}))
			require.Error(t, err)
			require.True(t, strings.HasPrefix(err.Error(), test.name+": "), "%v", err)
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "planted")
		})
	}
}

func TestEveryWrongVariableIsNamed(t *testing.T) {
	t.Parallel()
	_, err := ReadEnvironment(variables(map[string]string{"PORT": "x", "REDIS_URL": "-", "PINBOARD_LEASE_TTL_MS": "y"}))
	require.Error(t, err)
	for _, name := range []string{"PORT", "REDIS_URL", "PINBOARD_LEASE_TTL_MS"} {
		require.ErrorContains(t, err, name)
	}
}

// A password of a generator has such characters, and the parts look like something else.
func TestARedisPasswordThatIsNotEncodedIsSaidToNeedThat(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://:planted/more@h:1", "redis://u:12/planted@h:1", "redis://u:12?planted@h:1", "redis://u:12?planted=1@h",
		"redis://u:12#planted@h:1", "redis://:planted%@h:1", "redis://:planted%zz@h:1",
	} {
		_, err := ReadEnvironment(variables(map[string]string{"REDIS_URL": url}))
		require.ErrorContains(t, err, "write / as %2F", url)
		require.NotContains(t, err.Error(), "planted")
	}
	_, err := ReadEnvironment(variables(map[string]string{"REDIS_URL": "redis://:planted@h/0?foo=bar"}))
	require.Error(t, err)
	require.NotContains(t, err.Error(), "%2F")
}

func TestRedisParameters(t *testing.T) {
	t.Parallel()
	env, err := ReadEnvironment(variables(map[string]string{"REDIS_URL": "rediss://h?db=2&dial_timeout=1s&write_timeout=2s&skip_verify=true&" +
		"protocol=2&client_cache=0&max_retries=0&client_name=n&addr=i:7"}))
	require.NoError(t, err)
	require.Equal(t, []string{"h:6379", "i:7"}, env.Redis.InitAddress)
	require.Equal(t, 2*time.Second, env.Redis.ConnWriteTimeout)
	require.True(t, env.Redis.AlwaysRESP2 && env.Redis.DisableCache && env.Redis.TLSConfig.InsecureSkipVerify)
}

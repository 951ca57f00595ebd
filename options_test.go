package pinboard

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard/passport"
)

func goodOptions(t *testing.T) Options {
	t.Helper()
	pass, err := passport.Parse([]byte(regPassport), nil)
	require.NoError(t, err)
	return Options{Passport: pass, Store: MemoryStore()}
}

func TestZeroOptionsMeanTheirDefaults(t *testing.T) {
	t.Parallel()
	p, err := New(goodOptions(t))
	require.NoError(t, err)
	require.Equal(t, "pinboard", p.opts.KeyPrefix)
	require.Equal(t, 1, p.opts.Shards)
	require.Equal(t, 15*time.Second, p.opts.LeaseTTL)
	require.InDelta(t, 2, p.opts.Affinity.BalanceFactor, 0)
	require.NotNil(t, p.opts.Affinity.Key)
	require.Equal(t, 64<<10, p.opts.ReplayBuffer)
	require.Zero(t, p.opts.PlacementHold)
	require.Equal(t, 1000, p.opts.MaxHeld)
	require.Equal(t, 100, p.opts.MaxHeldPerID)
	require.Equal(t, 10, Options{MaxHeld: 10}.withDefaults().MaxHeldPerID)
	require.Equal(t, 1024, p.opts.Hooks.Queue)
	require.NotNil(t, p.opts.Logger)
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
}

// noRedis stands for a client of a host's own type.
type noRedis struct{ rueidis.Client }

func TestAWrongOptionIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	for field, changes := range map[string][]func(*Options){
		"Passport":                              {func(o *Options) { o.Passport = nil }},
		"Passport is a nil *passport.Standard":  {func(o *Options) { o.Passport = (*passport.Standard)(nil) }},
		"Redis is a nil *pinboard.noRedis":      {func(o *Options) { o.Store, o.Redis = nil, (*noRedis)(nil) }},
		"TracerProvider is a nil *trace.":       {func(o *Options) { o.TracerProvider = (*sdktrace.TracerProvider)(nil) }},
		"Metrics is a nil *prometheus.Registry": {func(o *Options) { o.Metrics = (*prometheus.Registry)(nil) }},
		"Redis or Store": {
			func(o *Options) { o.Store = nil },
		},
		"Store":     {func(o *Options) { o.Store = &Store{} }},
		"KeyPrefix": {func(o *Options) { o.KeyPrefix = "a{b" }, func(o *Options) { o.KeyPrefix = "}" }},
		"Shards":    {func(o *Options) { o.Shards = -1 }, func(o *Options) { o.Shards = 1025 }},
		"LeaseTTL": {
			func(o *Options) { o.LeaseTTL = -time.Second },
			func(o *Options) { o.LeaseTTL = 99 * time.Millisecond },
			func(o *Options) { o.LeaseTTL = time.Hour + 1 },
		},
		"Affinity.BalanceFactor": {
			func(o *Options) { o.Affinity.BalanceFactor = 0.99 },
			func(o *Options) { o.Affinity.BalanceFactor = -2 },
			func(o *Options) { o.Affinity.BalanceFactor = math.NaN() },
			func(o *Options) { o.Affinity.BalanceFactor = math.Inf(1) },
		},
		"DrainRate": {
			func(o *Options) { o.DrainRate = -1 },
			func(o *Options) { o.DrainRate = 0.0009 },
			func(o *Options) { o.DrainRate = 1e6 + 1 },
			func(o *Options) { o.DrainRate = math.NaN() },
		},
		"TrustedProxies[1]": {func(o *Options) { o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), {}} }},
		"PlacementHold": {
			func(o *Options) { o.PlacementHold = -1 },
			func(o *Options) { o.PlacementHold = time.Minute + 1 },
		},
		"MaxHeld is": {func(o *Options) { o.MaxHeld = -1 }, func(o *Options) { o.MaxHeld = 100_001 }},
		"MaxHeldPerID": {
			func(o *Options) { o.MaxHeldPerID = -1 },
			func(o *Options) { o.MaxHeldPerID = 1001 },
			func(o *Options) { o.MaxHeld, o.MaxHeldPerID = 10, 11 },
		},
		"Hooks.Queue":  {func(o *Options) { o.Hooks.Queue = -1 }, func(o *Options) { o.Hooks.Queue = 1_000_001 }},
		"ReplayBuffer": {func(o *Options) { o.ReplayBuffer = -1 }, func(o *Options) { o.ReplayBuffer = 16<<20 + 1 }},
	} {
		for i, change := range changes {
			opts := goodOptions(t)
			change(&opts)
			p, err := New(opts)
			require.ErrorContains(t, err, "Options."+field, "%s %d", field, i)
			require.Nil(t, p)
			require.NotContains(t, fmt.Sprint(err), "planted")
		}
	}
}

func TestEveryWrongOptionIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := New(Options{Shards: -1, LeaseTTL: 1, ReplayBuffer: -1, KeyPrefix: "{}"})
	for _, field := range []string{"Passport", "Redis or Store", "KeyPrefix", "Shards", "LeaseTTL", "ReplayBuffer"} {
		require.ErrorContains(t, err, "Options."+field)
	}
	require.Len(t, strings.Split(err.Error(), "\n"), 6)
}

func TestTheLimitsOfOptionsAreGoodValues(t *testing.T) {
	t.Parallel()
	for i, change := range []func(*Options){
		func(o *Options) { o.Shards = 1024 },
		func(o *Options) { o.LeaseTTL = 100 * time.Millisecond },
		func(o *Options) { o.LeaseTTL = time.Hour },
		func(o *Options) { o.Affinity.BalanceFactor = 1 },
		func(o *Options) { o.DrainRate = 0.001 },
		func(o *Options) { o.DrainRate = 1e6 },
		func(o *Options) { o.ReplayBuffer = 16 << 20 },
		func(o *Options) { o.ReplayBuffer = 1 },
		func(o *Options) { o.PlacementHold, o.MaxHeld, o.MaxHeldPerID = time.Minute, 100_000, 100_000 },
		func(o *Options) { o.PlacementHold, o.MaxHeld = 1, 1 },
	} {
		opts := goodOptions(t)
		change(&opts)
		_, err := New(opts)
		require.NoError(t, err, i)
	}
}

func TestALeaseShorterThanWorkersNeedIsSaidAtStart(t *testing.T) {
	t.Parallel()
	for lease, warnings := range map[time.Duration]int{9 * time.Second: 0, 9*time.Second - 1: 1} {
		core, logs := observer.New(zap.WarnLevel)
		opts := goodOptions(t)
		opts.LeaseTTL, opts.Logger = lease, zap.New(core)
		_, err := New(opts)
		require.NoError(t, err)
		require.Equal(t, warnings, logs.Len(), lease)
	}
}

// Two pinboards on one store see each other only with equal prefixes.
func TestDeploymentsWithDifferentPrefixesNeverMeet(t *testing.T) {
	t.Parallel()
	shared := MemoryStore()
	open := func(prefix string) *regNode { return newRegNode(t, Options{Store: shared, KeyPrefix: prefix}, nil) }
	one, same, other := open("one"), open("one"), open("other")
	w := one.workerAt("http://127.0.0.1:1")
	w.record("/a")
	require.Len(t, one.workersSeen(tokenOperator), 1)
	require.Len(t, same.workersSeen(tokenOperator), 1)
	require.Empty(t, other.workersSeen(tokenOperator))
}

func TestNoSecretIsPrinted(t *testing.T) {
	t.Parallel()
	opts := goodOptions(t)
	p, err := New(opts)
	require.NoError(t, err)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(format, opts), "planted")
		require.NotContains(t, fmt.Sprintf(format, p), "planted")
	}
}

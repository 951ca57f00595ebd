package worker

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// none is an environment without variables.
func none(string) (string, bool) { return "", false }

func variables(of map[string]string) environment {
	return func(name string) (string, bool) {
		value, ok := of[name]
		return value, ok
	}
}

// complete returns options with all that a worker of a pinboard needs.
func complete() Options {
	return Options{PinboardURL: "http://pinboard:8080/", Token: "t", AdvertiseURL: "HTTP://Worker:80/base/"}
}

func TestOptionsDefaults(t *testing.T) {
	t.Parallel()
	o := complete().withDefaults(none)
	require.NoError(t, o.validate(none))
	require.Equal(t, "http://pinboard:8080", o.PinboardURL)
	require.Equal(t, "http://worker/base", o.AdvertiseURL)
	require.Equal(t, 3*time.Second, o.HeartbeatInterval)
	require.Equal(t, 5*time.Second, o.LeaseBuffer)
	require.Equal(t, 15*time.Second, o.LeaseTTL)
	require.Equal(t, 300*time.Second, o.IdleTimeout)
	require.Equal(t, 24*time.Hour, o.DetachedTimeout)
	require.Equal(t, 30*time.Second, o.DrainDeadline)
	require.Equal(t, 10*time.Second, o.CloseTimeout)
	require.Equal(t, time.Second, o.ActivationQueueTimeout)
	require.Equal(t, 10_000, o.MaxInstances)
	require.Equal(t, 32, o.MaxConcurrentActivations)
	require.Zero(t, o.DrainRate)
	require.False(t, o.KeepPlacementOnIdle)
	require.NotNil(t, o.Logger)
}

func TestOptionsFromTheEnvironmentFillOnlyWhatIsEmpty(t *testing.T) {
	t.Parallel()
	env := variables(map[string]string{
		"PINBOARD_URL": "http://e:1", "PINBOARD_TOKEN": "e", "ADVERTISE_URL": "http://e:2", "PINBOARD_LEASE_TTL_MS": "60000",
		"PINBOARD_DRAIN_RATE": "2.5",
	})
	o := Options{}.withDefaults(env)
	require.NoError(t, o.validate(env))
	require.Equal(t, []string{"http://e:1", "e", "http://e:2"}, []string{o.PinboardURL, string(o.Token), o.AdvertiseURL})
	require.Equal(t, time.Minute, o.LeaseTTL)
	require.Equal(t, 2.5, o.DrainRate)
	mine := complete()
	mine.LeaseTTL, mine.DrainRate = 20*time.Second, 7
	o = mine.withDefaults(env)
	require.Equal(t, []string{"http://pinboard:8080/", "t", "HTTP://Worker:80/base/"}, []string{o.PinboardURL, string(o.Token), o.AdvertiseURL})
	require.Equal(t, 20*time.Second, o.LeaseTTL)
	require.Equal(t, 7.0, o.DrainRate)
}

func TestAHostnameIsSentAsItIsCompared(t *testing.T) {
	t.Parallel()
	o := complete()
	o.Hostname = "Chat.Example.COM."
	o = o.withDefaults(none)
	require.NoError(t, o.validate(none))
	require.Equal(t, "chat.example.com", o.Hostname)
}

func TestOptionsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(o *Options)
		env    map[string]string
		want   []string
	}{
		"URL alone": {func(o *Options) { *o = Options{PinboardURL: "http://p"} }, nil,
			[]string{"AdvertiseURL (ADVERTISE_URL) is required", "Token (PINBOARD_TOKEN) is required"}},
		"URL of the environment alone": {func(o *Options) { *o = Options{} }, map[string]string{"PINBOARD_URL": "http://p"},
			[]string{"AdvertiseURL (ADVERTISE_URL) is required", "Token (PINBOARD_TOKEN) is required"}},
		"token without a URL": {func(o *Options) { *o = Options{Token: "planted-hunter2-0123"} }, nil,
			[]string{"Token (PINBOARD_TOKEN) is set, but PinboardURL (PINBOARD_URL) is not"}},
		"token of the environment without a URL": {func(o *Options) { *o = Options{} }, map[string]string{"PINBOARD_TOKEN": "planted-hunter2-0123"},
			[]string{"Token (PINBOARD_TOKEN) is set, but PinboardURL (PINBOARD_URL) is not"}},
		"advertise URL without a URL": {func(o *Options) { *o = Options{AdvertiseURL: "http://w"} }, nil,
			[]string{"AdvertiseURL (ADVERTISE_URL) is set, but PinboardURL (PINBOARD_URL) is not"}},
		"empty variable": {func(o *Options) { *o = Options{} }, map[string]string{"PINBOARD_URL": ""},
			[]string{"PinboardURL (PINBOARD_URL) is set and empty"}},
		"empty variable beside a token": {func(o *Options) { *o = Options{Token: "planted-hunter2-0123"} }, map[string]string{"PINBOARD_URL": ""},
			[]string{"PinboardURL (PINBOARD_URL) is set and empty"}},
		"not a URL":         {func(o *Options) { o.PinboardURL = "pinboard:8080" }, nil, []string{"PinboardURL (PINBOARD_URL)"}},
		"password in a URL": {func(o *Options) { o.PinboardURL = "http://me:planted-hunter2-0123@pinboard" }, nil, []string{"PinboardURL (PINBOARD_URL)"}},
		"query":             {func(o *Options) { o.AdvertiseURL = "http://worker?planted-hunter2-0123" }, nil, []string{"AdvertiseURL (ADVERTISE_URL)"}},
		"token with a line": {func(o *Options) { o.Token = "planted-hunter2-0123\r\nX: y" }, nil, []string{"Token (PINBOARD_TOKEN)"}},
		"token not ASCII":   {func(o *Options) { o.Token = "planted-hunter2-0123é" }, nil, []string{"Token (PINBOARD_TOKEN)"}},
		"negative times": {func(o *Options) {
			o.HeartbeatInterval, o.LeaseBuffer, o.IdleTimeout, o.DetachedTimeout = -1, -1, -1, -1
			o.DrainDeadline, o.CloseTimeout, o.ActivationQueueTimeout, o.LeaseTTL = -1, -1, -1, -1
		}, nil, []string{"HeartbeatInterval", "LeaseBuffer", "IdleTimeout", "DetachedTimeout", "DrainDeadline", "CloseTimeout", "ActivationQueueTimeout", "LeaseTTL"}},
		"negative counts": {func(o *Options) { o.MaxInstances, o.MaxConcurrentActivations = -1, -1 }, nil, []string{"MaxInstances", "MaxConcurrentActivations"}},
		"too many":        {func(o *Options) { o.MaxInstances = 100_001 }, nil, []string{"MaxInstances"}},
		"buffer as long as the lease": {func(o *Options) { o.LeaseBuffer = 15 * time.Second }, nil,
			[]string{"LeaseBuffer is 15s, must be below the lease time LeaseTTL (PINBOARD_LEASE_TTL_MS) of 15s"}},
		"buffer as long as the lease of the environment": {func(*Options) {}, map[string]string{"PINBOARD_LEASE_TTL_MS": "5000"},
			[]string{"LeaseBuffer is 5s, must be below the lease time LeaseTTL (PINBOARD_LEASE_TTL_MS) of 5s"}},
		"lease time that is no number": {func(*Options) {}, map[string]string{"PINBOARD_LEASE_TTL_MS": "15s"}, []string{"LeaseTTL (PINBOARD_LEASE_TTL_MS, whole milliseconds)"}},
		"drain rate that is no number": {func(*Options) {}, map[string]string{"PINBOARD_DRAIN_RATE": "fast"}, []string{"DrainRate (PINBOARD_DRAIN_RATE)"}},
		"negative drain rate":          {func(o *Options) { o.DrainRate = -1 }, nil, []string{"DrainRate"}},
		"drain rate without a number":  {func(o *Options) { o.DrainRate = math.NaN() }, nil, []string{"DrainRate"}},
		"drain rate without an end":    {func(o *Options) { o.DrainRate = math.Inf(1) }, nil, []string{"DrainRate"}},
		"two heartbeats to a lease":    {func(o *Options) { o.HeartbeatInterval = 5*time.Second + 1 }, nil, []string{"HeartbeatInterval"}},
		"no time between heartbeat and buffer": {func(o *Options) { o.HeartbeatInterval, o.LeaseBuffer = 3*time.Second, 12*time.Second }, nil,
			[]string{"LeaseBuffer and HeartbeatInterval"}},
		"host name with a port":   {func(o *Options) { o.Hostname = "chat:80" }, nil, []string{"Hostname"}},
		"host name that is a URL": {func(o *Options) { o.Hostname = "http://chat" }, nil, []string{"Hostname"}},
		"deployment without host": {func(o *Options) { o.Env, o.Takeover = "blue", TakeoverDeny }, nil, []string{"Env needs", "Takeover needs"}},
		"unknown takeover":        {func(o *Options) { o.Hostname, o.Takeover = "chat", "force" }, nil, []string{"Takeover must be"}},
		"negative epoch":          {func(o *Options) { o.Epoch = -1 }, nil, []string{"Epoch"}},
		"epoch that JSON rounds":  {func(o *Options) { o.Epoch = 1 << 53 }, nil, []string{"Epoch"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := complete()
			tc.change(&o)
			env := variables(tc.env)
			o = o.withDefaults(env)
			err := o.validate(env)
			require.Error(t, err)
			for _, field := range tc.want {
				require.ErrorContains(t, err, "worker: Options."+field)
			}
			require.Equal(t, len(tc.want), strings.Count(err.Error(), "worker: Options."), "nothing else is wrong: %v", err)
			require.NotContains(t, err.Error(), "planted-hunter2-0123")
		})
	}
}

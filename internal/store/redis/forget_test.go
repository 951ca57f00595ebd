package redis

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

const binding = "preview-1.example/counters"

func onHost(client string) store.Registration {
	r := registration(client)
	r.Hostname = "preview-1.example"
	r.Instances = map[string][]string{"/counters": {"x"}}
	return r
}

// abandon lets a worker with a host name come and go, long ago: what is
// remembered for a day, or an hour, is over. Its last epoch is one of the future,
// as if the clock had been set back since.
func (d *directory) abandon(t *testing.T, epoch string) {
	t.Helper()
	r := onHost("a")
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, d.Deregister(t.Context(), r.SessionID))
	d.sweepAll(t)
	require.True(t, d.listed(t), "the client is remembered")
	d.do1(t, "DEL", string(d.keys.fleet())+"g:"+escape(binding))
	for _, b := range d.keys.buckets([]string{binding}) {
		d.do1(t, "DEL", b.clients())
		d.do1(t, "HSET", b.meta(), "epoch", epoch)
	}
}

func (d *directory) sweepAll(t *testing.T) {
	t.Helper()
	for more := true; more; {
		var err error
		_, more, err = d.Sweep(t.Context())
		require.NoError(t, err)
	}
}

func (d *directory) listed(t *testing.T) bool {
	t.Helper()
	return d.do1(t, "SISMEMBER", d.keys.fleet().namespaces(), binding) == "1"
}

func (d *directory) epochOf(t *testing.T, id string) int64 {
	t.Helper()
	row, err := d.Lookup(t.Context(), binding, id)
	require.NoError(t, err)
	return row.Epoch
}

const future = int64(1) << 52

func TestABindingThatNobodyUsesAnyMoreIsForgottenAndItsEpochsStillRise(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	d.keys.shards = 3
	d.abandon(t, "4503599627370496")
	d.sweepAll(t)
	require.False(t, d.listed(t))
	for _, key := range d.scan(t) {
		for _, b := range d.keys.buckets([]string{binding}) {
			require.False(t, strings.HasPrefix(key, string(b)), key)
		}
	}

	_, err := d.Register(t.Context(), onHost("b"))
	require.NoError(t, err)
	require.True(t, d.listed(t))
	require.Greater(t, d.epochOf(t, "x"), future)
	d.sweepAll(t)
	require.True(t, d.listed(t))
}

// What one bucket still has keeps the whole binding.
func TestABindingIsKeptForWhatAnyBucketHas(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"sessions", "clients", "rows"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := open(t, time.Hour)
			d.keys.shards = 2
			d.abandon(t, "5")
			b := d.keys.bucket(binding, 1)
			switch what {
			case "sessions":
				d.do1(t, "ZADD", b.sessions(), "1e15", "s")
			case "clients":
				d.do1(t, "HSET", b.clients(), "a", "1 99999999999999")
			case "rows":
				d.do1(t, "SETBIT", b.leaves(), "77", "1")
			}
			d.sweepAll(t)
			require.True(t, d.listed(t))
			require.Equal(t, "5", d.do1(t, "HGET", b.meta(), "epoch"))
		})
	}
}

// interposing is a client that does something just before the nth run of a script.
type interposing struct {
	rueidis.Client
	script *script
	n      int
	do     func()
}

func (b *interposing) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if cmd.Commands()[1] == b.script.digest {
		if b.n--; b.n == 0 {
			b.do()
		}
	}
	return b.Client.Do(ctx, cmd)
}

func TestARegistrationMeanwhileKeepsABindingAndItsEpochs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script *script
		n      int
	}{
		"before the epochs are remembered": {script: forgetScript, n: 1},
		"before the buckets are removed":   {script: vacantScript, n: 1},
		"before it is taken off the list":  {script: forgetScript, n: 2},
	} {
		for half, steps := range map[string]bool{"whole": false, "joining later": true} {
			t.Run(name+", "+half, func(t *testing.T) {
				t.Parallel()
				d := open(t, time.Hour)
				d.abandon(t, "4503599627370496")
				r := onHost("b")
				var later *registering
				d.client = &interposing{Client: d.client, script: c.script, n: c.n, do: func() {
					var err error
					if steps {
						later, err = d.admit(t.Context(), &r)
					} else {
						_, err = d.Register(t.Context(), r)
					}
					require.NoError(t, err)
				}}
				d.sweepAll(t)
				if steps {
					require.NoError(t, d.join(t.Context(), later))
					_, _, err := d.reclaim(t.Context(), later)
					require.NoError(t, err)
				}
				require.True(t, d.listed(t))
				require.Greater(t, d.epochOf(t, "x"), future)
				bucketOf{directory: d, bucketKeys: d.keys.bucket(binding, 0)}.consistent(t)
			})
		}
	}
}

package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var envRules = []rule{
	{"another env is refused while one is live, and changes nothing", envRefused},
	{"no env is another one than some env", noEnvIsAnother},
	{"an env may be of one namespace", envOfNamespace},
	{"a takeover drains the clients of the other env", takeoverDrains},
	{"a takeover keeps a drain that ends sooner", takeoverKeepsSooner},
	{"a client that is drained may come back beside another env", drainedComesBack},
	{"a takeover does not drain what was displaced", takeoverOfDisplaced},
	{"an env is compared within an epoch only", envWithinEpoch},
	{"an env is free when its last session has ended", envFreed},
}

func ofEnv(env string) change {
	return func(r *store.Registration) { r.Hostname, r.Env = host, env }
}

func takeover(r *store.Registration) { r.Takeover = time.Minute }

func envRefused(t *testing.T, f Fixture) {
	d := empty(f)
	blue := d.join(t, "blue", ofEnv("blue"))
	d.join(t, "blue too", ofEnv("blue"))
	green := registration("green", ofEnv("green"), listing(counters, "x"), at("http://blue.test:8000"))
	require.ErrorIs(t, d.CheckRegister(t.Context(), green), store.ErrOtherEnv)
	_, err := d.lasting.Register(t.Context(), green)
	require.ErrorIs(t, err, store.ErrOtherEnv)
	require.ErrorContains(t, err, "blue")
	d.ended(t, green.SessionID)
	require.Zero(t, d.beat(t, blue).Drain)
	d.free(t, store.Bind(host, counters), "x")
	// Nor does a client of its own change its env beside others.
	require.ErrorIs(t, d.CheckRegister(t.Context(), registration("blue", ofEnv("green"))), store.ErrOtherEnv)
	require.NoError(t, d.CheckRegister(t.Context(), registration("blue", ofEnv("blue"))))
	require.NoError(t, d.CheckRegister(t.Context(), registration("green", ofEnv("green"), under("other.example"))))
}

func noEnvIsAnother(t *testing.T, f Fixture) {
	d := empty(f)
	d.join(t, "none", under(host))
	require.ErrorIs(t, d.CheckRegister(t.Context(), registration("blue", ofEnv("blue"))), store.ErrOtherEnv)
	require.NoError(t, d.CheckRegister(t.Context(), registration("none too", under(host))))
	d.join(t, "blue", ofEnv("blue"), serving("/others"))
	require.ErrorIs(t, d.CheckRegister(t.Context(), registration("none", under(host), serving("/others"))), store.ErrOtherEnv)
}

func envOfNamespace(t *testing.T, f Fixture) {
	d := empty(f)
	d.join(t, "a", ofEnv("blue"), serving(counters, "/others"), func(r *store.Registration) {
		r.Envs = map[string]string{"/others": "gr{e}en"}
	})
	require.NoError(t, d.CheckRegister(t.Context(), registration("b", ofEnv("blue"))))
	require.NoError(t, d.CheckRegister(t.Context(), registration("b", ofEnv("gr{e}en"), serving("/others"))))
	err := d.CheckRegister(t.Context(), registration("b", ofEnv("blue"), serving(counters, "/others")))
	require.ErrorIs(t, err, store.ErrOtherEnv)
	require.ErrorContains(t, err, `env "gr{e}en", not "blue"`)
	require.ErrorContains(t, err, host+"/others")
}

func takeoverDrains(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	d.open(t, host)
	blue := d.join(t, "blue", ofEnv("blue"), serving(counters, "/others"))
	elsewhere := d.join(t, "elsewhere", ofEnv("blue"), serving("/others"))
	req := request(counters, "x")
	req.Hostname = host
	placed := d.ask(t, req)
	require.Equal(t, store.Placed, placed.Outcome)

	require.NoError(t, d.CheckRegister(t.Context(), registration("green", ofEnv("green"), takeover)))
	require.Zero(t, d.session(t, blue).Drain, "asking changes nothing")
	green, ans := d.register(t, "green", ofEnv("green"), takeover)
	require.Equal(t, []string{blue}, ans.Drained)
	require.Empty(t, ans.Displaced)
	require.Zero(t, ans.Drain)
	req.ID = "y"
	require.Equal(t, store.NoCandidate, d.ask(t, req).Outcome)
	require.NoError(t, d.Activate(t.Context(), green))
	require.Equal(t, green, d.ask(t, req).SessionID)

	// It keeps what it has, and is renewed.
	drain := d.beat(t, blue).Drain
	require.True(t, drain.Draining)
	require.True(t, drain.Deadline)
	require.LessOrEqual(t, drain.Left, time.Minute)
	require.Greater(t, drain.Left, time.Minute/2)
	req.ID = "x"
	res := d.ask(t, req)
	require.Equal(t, store.Owned, res.Outcome)
	require.False(t, res.Stopped)
	// The drain is the client's, in all its namespaces; others are not touched.
	require.Zero(t, d.beat(t, elsewhere).Drain)
	view, err := d.Candidates(t.Context(), store.Bind(host, "/others"), "x")
	require.NoError(t, err)
	require.Len(t, view.Candidates, 1)
	require.Equal(t, elsewhere, view.Candidates[0].SessionID)
	client, err := d.Client(t.Context(), "blue")
	require.NoError(t, err)
	require.True(t, client.Drain.Draining)

	_, ans = d.register(t, "green too", ofEnv("green"), takeover)
	require.Empty(t, ans.Drained, "once is enough")
}

func takeoverKeepsSooner(t *testing.T, f Fixture) {
	d := empty(f)
	sooner, later, none := d.join(t, "sooner", ofEnv("blue")), d.join(t, "later", ofEnv("blue")), d.join(t, "none", ofEnv("blue"))
	second, hour := time.Second, time.Hour
	d.drain(t, "sooner", &second)
	d.drain(t, "later", &hour)
	d.drain(t, "none", nil)
	_, ans := d.register(t, "green", ofEnv("green"), takeover)
	require.ElementsMatch(t, []string{later, none}, ans.Drained)
	require.LessOrEqual(t, d.beat(t, sooner).Drain.Left, second)
	for _, session := range []string{later, none} {
		drain := d.beat(t, session).Drain
		require.True(t, drain.Deadline)
		require.LessOrEqual(t, drain.Left, time.Minute)
	}
}

func drainedComesBack(t *testing.T, f Fixture) {
	d := empty(f)
	d.join(t, "blue", ofEnv("blue"), takeover)
	green := d.join(t, "green", ofEnv("green"), takeover)
	for _, change := range []change{takeover, headroom(1)} {
		require.NoError(t, d.CheckRegister(t.Context(), registration("blue", ofEnv("blue"), change)))
		again, ans := d.register(t, "blue", ofEnv("blue"), change)
		require.Empty(t, ans.Drained, "it takes nothing over any more")
		require.True(t, ans.Drain.Draining)
		d.beat(t, again)
	}
	require.Zero(t, d.beat(t, green).Drain)
	require.ErrorIs(t, d.CheckRegister(t.Context(), registration("blue too", ofEnv("blue"))), store.ErrOtherEnv)
	// A new process is not drained.
	_, ans := d.register(t, "blue too", ofEnv("blue"), takeover)
	require.Equal(t, []string{green}, ans.Drained)
}

func takeoverOfDisplaced(t *testing.T, f Fixture) {
	d := empty(f)
	blue := d.join(t, "blue", ofEnv("blue"))
	require.NoError(t, d.Deregister(t.Context(), d.join(t, "next", ofEnv("blue"), ofEpoch(1))))
	green := registration("green", ofEnv("green"))
	require.ErrorIs(t, d.CheckRegister(t.Context(), green), store.ErrOtherEnv, "it is live until its lease ends")
	_, ans := d.register(t, "green", ofEnv("green"), takeover)
	require.Empty(t, ans.Drained)
	require.Zero(t, d.session(t, blue).Drain)
}

func envWithinEpoch(t *testing.T, f Fixture) {
	d := empty(f)
	blue := d.join(t, "blue", ofEnv("blue"))
	_, ans := d.register(t, "green", ofEnv("green"), ofEpoch(1), takeover)
	require.Equal(t, []string{blue}, ans.Displaced)
	require.Empty(t, ans.Drained)
	d.displaced(t, blue, "green", 1)
	require.ErrorIs(t, d.CheckRegister(t.Context(), registration("red", ofEnv("red"), takeover)), store.ErrLowerEpoch)
	// Where both are against it, in whatever order, the epoch is what counts.
	for _, ns := range []string{"/a", "/z"} {
		d.join(t, "level "+ns, ofEnv("blue"), serving(ns))
		both := registration("both", ofEnv("red"), serving(counters, ns))
		slices.Sort(both.Namespaces)
		require.ErrorIs(t, d.CheckRegister(t.Context(), both), store.ErrLowerEpoch)
	}
}

func envFreed(t *testing.T, f Fixture) {
	d := empty(f)
	lapses, leaves := joinThrough(t, d.lapsing, "lapses", ofEnv("blue")), d.join(t, "leaves", ofEnv("blue"))
	green := registration("green", ofEnv("green"))
	require.NoError(t, d.Deregister(t.Context(), leaves))
	// A client's own drain leaves it live.
	_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: lapses, Draining: true})
	require.NoError(t, err)
	require.ErrorIs(t, d.CheckRegister(t.Context(), green), store.ErrOtherEnv)
	d.Until(t, func() bool { return d.CheckRegister(t.Context(), green) == nil })
	d.ended(t, lapses)
	_, err = d.lasting.Register(t.Context(), green)
	require.NoError(t, err)
}

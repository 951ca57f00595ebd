package redis

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// FuzzIdsTogetherAreAsIfInTurn asks for ids in one run of the script, and for the same
// ids one by one in a bucket that begins alike. What is answered, and what is in the
// buckets afterwards, is the same; and where the pure function says whose an id is,
// it is that one's.
func FuzzIdsTogetherAreAsIfInTurn(f *testing.F) {
	for seed := range uint64(150) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		p := newPair(t, rand.New(rand.NewPCG(seed, 5)))
		limit, reqs := p.limit(), p.requests()
		said := make([][]string, len(reqs))
		for i, a := range p.one.resolving(t, limit, reqs...) {
			said[i] = p.plain(t, p.one, a)
		}
		for i, req := range reqs {
			want := p.plain(t, p.other, p.other.resolving(t, limit, req)[0])
			require.Equal(t, want, said[i], "id %d of %+v", i, reqs)
			if expected, ok := p.chosen(req); ok {
				require.Equal(t, expected, said[i][:2], "id %d of %+v", i, reqs)
			}
		}
		require.Equal(t, p.held(t, p.other, reqs), p.held(t, p.one, reqs), "%+v", reqs)
		for sid := range p.live {
			if p.plainly {
				require.Equal(t, p.taken[sid], p.one.taken(t, sid), "what %s got, of %+v", sid, reqs)
			}
		}
		for _, b := range []bucketOf{p.one, p.other} {
			rising := append([]int64{p.last}, p.epochs[b.bucketKeys]...)
			require.True(t, slices.IsSorted(rising) && len(slices.Compact(slices.Clone(rising))) == len(rising), "%v", rising)
			known, err := strconv.ParseInt("0"+b.do1(t, "HGET", b.meta(), "epoch"), 10, 64)
			require.NoError(t, err)
			require.GreaterOrEqual(t, known, rising[len(rising)-1], "the bucket's own is no lower")
		}
	})
}

// Whatever a headroom is, each placement is counted, also while its owner takes none, and
// once: as one since the last heartbeat, and as a row.
func TestEachPlacementIsCountedWhateverTheHeadroom(t *testing.T) {
	t.Parallel()
	const n = 5
	for _, headroom := range []float64{0, 0.1, 1, 2.5, n, 1000, 1 << 52, 1<<52 + 1, 1 << 53, 1e18, math.MaxFloat64} {
		t.Run(fmt.Sprint(headroom), func(t *testing.T) {
			t.Parallel()
			b := openBucket(t)
			b.candidate(t, "s", headroom)
			asked := []*store.Session{{ID: "s", Namespaces: []string{"/counters"}}}
			counted := func(taken int, left float64) {
				t.Helper()
				got, err := b.directory.taken(t.Context(), asked)
				require.NoError(t, err)
				require.Equal(t, []int64{int64(taken)}, got)
				rows := b.calling(t, countsScript.with([]string{b.sessions(), b.candidates()}, string(b.bucketKeys), "s"))
				require.Equal(t, int64(n), rows.int(), "placements")
				if score := b.do1(t, "ZSCORE", b.candidates(), "s"); score != "" {
					require.Equal(t, left, number64(t, score))
				}
			}
			for i := range n {
				require.Equal(t, store.Placed, b.ask(t, fmt.Sprint("id-", i)).Outcome)
			}
			left := max(0, headroom-n)
			if headroom > 1<<52 {
				left = headroom
			}
			counted(n, left)
			b.apply(t, state{sid: "s", version: 2})
			require.Empty(t, b.do1(t, "ZSCORE", b.candidates(), "s"))
			counted(n, 0)
			for version := range int64(2) {
				b.apply(t, state{sid: "s", version: 3 + version, takes: true})
				counted(n, left)
			}
			b.apply(t, state{sid: "s", version: 5, takes: true, renew: 60_000, headroom: 7})
			counted(0, 7)
		})
	}
}

func number64(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	return n
}

func TestASessionThatIsReplacedKeepsItsCount(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.candidate(t, "s", 100)
	require.Equal(t, store.Placed, b.ask(t, "x").Outcome)
	b.join(t, "s2", "client of s", 2)
	require.Empty(t, b.do1(t, "ZSCORE", b.candidates(), "s"))
	require.Equal(t, 1, b.taken(t, "s"))
}

// A session whose rows are all told by its score may leave dead rows like any other.
func TestRowsOfACandidateThatLeavesAreSwept(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.candidate(t, "s", 100)
	require.Equal(t, store.Placed, b.ask(t, "x").Outcome)
	b.calling(t, leaveScript.with([]string{b.meta(), b.sessions(), b.candidates(), b.none()}, string(b.bucketKeys), "s"))
	require.Equal(t, "1", b.do1(t, "HGET", b.meta(), "dirty"))
}

func TestThoseBeforeAnIdThatFailsAreAnsweredAndCounted(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.candidate(t, "s", 1000)
	b.do1(t, "SET", b.rows(b.keys.leaf("broken")), "no hash")
	b.do1(t, "HSET", b.rows(b.keys.leaf("odd")), "odd", "no row")
	ids := []string{"a", "b", "broken", "odd", "c"}
	failed := map[string]string{"broken": "WRONGTYPE", "odd": "what is there is no row"}
	call := &together{ctx: t.Context()}
	for _, id := range ids {
		call.askers = append(call.askers, &asker{req: store.Request{ID: id, Preferred: "s", View: store.AnyView, BalanceFactor: 2}})
	}
	answers := b.askOnce(likeness(b.bucketKeys, call.askers[0].req), call)
	require.Len(t, answers, len(ids))
	for i, a := range answers {
		if outcome := store.Outcome(a.int()); failed[ids[i]] != "" {
			require.ErrorContains(t, a.err, failed[ids[i]])
		} else {
			require.NoError(t, a.err)
			require.Equal(t, store.Placed, outcome, ids[i])
			require.Equal(t, "s", b.owner(t, ids[i]))
		}
	}
	require.Equal(t, 3, b.taken(t, "s"))
	require.Equal(t, "997", b.do1(t, "ZSCORE", b.candidates(), "s"))
}

// pair is two buckets that begin alike, and what the pure function knows of them.
type pair struct {
	rng        *rand.Rand
	one, other bucketOf
	sids       []string
	live       map[string]store.Candidate // by sid: those that have a record
	takes      map[string]bool
	taken      map[string]int
	owners     map[string]string // of ids
	plainly    bool              // nothing but the choice decides
	hosts      bool
	last       int64                  // epoch of the buckets
	epochs     map[bucketKeys][]int64 // that placements got, in turn
}

func newPair(t *testing.T, rng *rand.Rand) *pair {
	d := open(t, 10*time.Minute)
	p := &pair{
		rng: rng, live: map[string]store.Candidate{}, takes: map[string]bool{}, taken: map[string]int{},
		owners: map[string]string{}, plainly: true, epochs: map[bucketKeys][]int64{},
		one:   bucketOf{directory: d, bucketKeys: d.keys.bucket("/together", 0)},
		other: bucketOf{directory: d, bucketKeys: d.keys.bucket("/in-turn", 0)},
	}
	for i := range rng.IntN(5) {
		p.worker(t, fmt.Sprint("s", i))
	}
	for i := range rng.IntN(4) {
		id, owner := fmt.Sprint("id-", i), "gone"
		if len(p.sids) > 0 && rng.IntN(3) > 0 {
			owner = p.sids[rng.IntN(len(p.sids))]
		}
		p.do(t, func(b bucketOf) []string {
			return []string{"HSET", b.rows(b.keys.leaf(id)), id, fmt.Sprint(100+i) + "a " + owner}
		})
		p.do(t, func(b bucketOf) []string { return []string{"SETBIT", b.leaves(), strconv.Itoa(b.keys.leaf(id)), "1"} })
		p.owners[id] = owner
	}
	p.meta(t)
	return p
}

// do runs a command in both.
func (p *pair) do(t *testing.T, command func(b bucketOf) []string) {
	t.Helper()
	for _, b := range []bucketOf{p.one, p.other} {
		b.do1(t, command(b)...)
	}
}

func (p *pair) worker(t *testing.T, sid string) {
	c := store.Candidate{SessionID: sid, ClientID: "client of " + sid}
	c.Headroom = []float64{0, 1, 2.5, 3, 0.1, 7, 7, 1e18, math.MaxFloat64, p.rng.Float64() * 40}[p.rng.IntN(10)]
	headroom := strconv.FormatFloat(c.Headroom, 'g', -1, 64)
	takes, gone := p.rng.IntN(5) > 0, p.rng.IntN(12) == 0
	p.sids = append(p.sids, sid)
	p.do(t, func(b bucketOf) []string { return []string{"ZADD", b.sessions(), "4e12", sid} })
	p.do(t, func(b bucketOf) []string { return []string{"HSET", b.clients(), c.ClientID, "1 1 " + sid} })
	if takes {
		p.do(t, func(b bucketOf) []string { return []string{"ZADD", b.candidates(), headroom, sid} })
	}
	if gone {
		p.plainly = false
		return
	}
	stopped := strconv.Itoa(p.rng.IntN(6) / 5)
	p.do(t, func(b bucketOf) []string {
		return []string{
			"HSET", b.session(sid), "takes", strconv.Itoa(map[bool]int{true: 1}[takes]), "headroom", headroom, "taken", "0",
			"lease", "600000", "client", c.ClientID, "stopped", stopped, "rows", "9",
		}
	})
	lives := strconv.Itoa([]int{600_000, 1_000_000, 60_000}[p.rng.IntN(3)]) // the second, of a clock that was set back
	p.do(t, func(b bucketOf) []string { return []string{"PEXPIRE", b.session(sid), lives} })
	p.live[sid], p.takes[sid] = c, takes
}

// meta has the buckets begin with a quarantine of any kind, and a bound on headroom.
func (p *pair) meta(t *testing.T) {
	fields := []string{"version", "7"}
	ms := time.Now().UnixMilli()
	switch p.rng.IntN(8) {
	case 0: // none has begun
		p.plainly = false
	case 1:
		fields = append(fields, "quarantine", strconv.FormatInt(ms-5, 10), "quarantined", "60000") // is over
	case 2:
		fields, p.plainly = append(fields, "quarantine", strconv.FormatInt(ms+40_000, 10), "quarantined", "60000"), false
	case 3:
		fields, p.plainly = append(fields, "quarantine", strconv.FormatInt(ms+400_000, 10), "quarantined", "60000"), false
	default:
		fields = append(fields, "quarantine", "0")
	}
	if p.rng.IntN(3) > 0 {
		best := 0.0
		for _, c := range p.live {
			best = max(best, c.Headroom)
		}
		for _, sid := range p.sids {
			if _, ok := p.live[sid]; !ok {
				best = math.MaxFloat64 // one that has lapsed may have had more
			}
		}
		if p.rng.IntN(3) == 0 {
			best = max(best, 1e20)
		}
		fields = append(fields, "best", strconv.FormatFloat(best, 'g', -1, 64))
	}
	p.last = []int64{0, 5, 1 << 52}[p.rng.IntN(3)] // the last, of a clock that was set back
	if p.last > 0 {
		fields = append(fields, "epoch", strconv.FormatInt(p.last, 10))
	}
	p.do(t, func(b bucketOf) []string { return append([]string{"HSET", b.meta()}, fields...) })
	if p.hosts = p.rng.IntN(10) == 0; p.hosts {
		ends := []int64{ms + 60_000, ms - 60_000}[p.rng.IntN(2)]
		p.do(t, func(b bucketOf) []string {
			return []string{"ZADD", b.hosts(), strconv.FormatInt(ends, 10), "h.example"}
		})
	}
}

// limit is how far the clock can have come: mostly as far as it has.
func (p *pair) limit() int64 {
	limits := []int64{1, 0, -1}
	if i := p.rng.IntN(15); i < len(limits) {
		p.plainly = p.plainly && limits[i] == 0
		return limits[i]
	}
	return time.Now().Add(time.Hour).UnixMicro()
}

func (p *pair) requests() []store.Request {
	n := 1 + p.rng.IntN(maxTogether)
	like := store.Request{View: store.AnyView, BalanceFactor: []float64{1, 1.5, 2, 100, 1e300}[p.rng.IntN(5)]}
	switch p.rng.IntN(6) {
	case 0:
		like.View, p.plainly = 6, false
	case 1, 2:
		like.View = 7
	}
	if p.hosts {
		like.Unless, p.plainly = "h.example", false
	}
	if len(p.sids) > 0 && p.rng.IntN(5) == 0 {
		n, p.plainly = 1, false
		like.ID = "id-0"
		like.Refused = &store.Refused{SessionID: p.owners["id-0"], ClientID: "client of " + p.sids[0], Epoch: int64(100 + p.rng.IntN(2))}
	}
	reqs := make([]store.Request, n)
	for i := range reqs {
		req := like
		if req.ID == "" {
			req.ID = fmt.Sprint("id-", p.rng.IntN(n+n/2+1))
		}
		for j := range req.Dice {
			req.Dice[j] = p.rng.Uint32() >> 1
		}
		if k := p.rng.IntN(len(p.sids) + 2); k < len(p.sids) {
			req.Preferred = p.sids[k]
		} else if k == len(p.sids) {
			req.Preferred = "nobody"
		}
		req.PreferredBy = []store.Choice{store.ByAffinity, store.ByCaller}[p.rng.IntN(2)]
		reqs[i] = req
	}
	return reqs
}

// about tells a time in ms to within ten seconds.
func about(ms int64) string { return strconv.FormatInt((ms+5000)/10_000, 10) }

// plain is an answer without what depends on when it was asked for.
func (p *pair) plain(t *testing.T, b bucketOf, a *answer) []string {
	t.Helper()
	outcome := a.int()
	said := []string{strconv.FormatInt(outcome, 10)}
	switch store.Outcome(outcome) {
	case store.Owned, store.Placed:
		said = append(said, a.text())
		epoch := a.int()
		if p.last > 5 || epoch < 1000 {
			said = append(said, strconv.FormatInt(epoch, 10)) // is not the clock's
		}
		said = append(said, about(a.int()), strconv.FormatInt(a.int(), 10))
		if store.Outcome(outcome) == store.Placed {
			p.epochs[b.bucketKeys] = append(p.epochs[b.bucketKeys], epoch)
			a.int()
			said = append(said, a.text(), a.text())
		}
	case store.Quarantined:
		said = append(said, about(a.int()))
		a.int()
		said = append(said, strconv.FormatInt(a.int(), 10))
	case outcomeStepped:
		a.int()
	case store.UnknownNamespace:
		said = append(said, about(a.int()))
	case outcomeAgain:
		said = append(said, a.text())
	case store.NoCandidate, store.StaleView, store.Elsewhere:
	default:
		require.Fail(t, "an unknown outcome", outcome)
	}
	require.NoError(t, a.err)
	require.False(t, a.more())
	return said
}

// chosen says what is to be answered, where the pure function alone decides, and notes
// that it was.
func (p *pair) chosen(req store.Request) (answer []string, ok bool) {
	if !p.plainly || len(p.live) == 0 {
		return nil, false
	}
	owner := p.owners[req.ID]
	if _, lives := p.live[owner]; lives {
		return []string{strconv.Itoa(int(store.Owned)), owner}, true
	}
	var candidates []store.Candidate
	for sid, c := range p.live {
		if p.takes[sid] {
			c.Headroom = max(0, c.Headroom-float64(p.taken[sid]))
			candidates = append(candidates, c)
		}
	}
	if len(candidates) == 0 {
		return nil, false
	}
	slices.SortFunc(candidates, store.Compare)
	sid := candidates[store.Choose(candidates, req.Preferred, req.BalanceFactor, req.Dice)].SessionID
	p.owners[req.ID] = sid
	p.taken[sid]++
	return []string{strconv.Itoa(int(store.Placed)), sid}, true
}

// held is what a bucket holds of what the requests are about, without times.
func (p *pair) held(t *testing.T, b bucketOf, reqs []store.Request) map[string]string {
	t.Helper()
	list := func(args ...string) string {
		values, err := b.client.Do(t.Context(), b.client.B().Arbitrary(args...).Build()).AsStrSlice()
		require.NoError(t, err)
		return strings.Join(values, " ")
	}
	held := map[string]string{
		"leaves":     b.do1(t, "GET", b.leaves()),
		"bucket":     list("HMGET", b.meta(), "version", "best", "quarantined"),
		"waits":      strconv.FormatBool(b.do1(t, "HGET", b.meta(), "quarantine") != "0"),
		"candidates": list("ZRANGE", b.candidates(), "0", "-1", "WITHSCORES"),
	}
	for _, sid := range p.sids {
		held[sid] = list("HMGET", b.session(sid), "headroom", "taken", "rows", "takes", "stopped")
		left, err := strconv.ParseInt(b.do1(t, "PTTL", b.session(sid)), 10, 64)
		require.NoError(t, err)
		held["lease of "+sid] = about(left)
	}
	for _, req := range reqs {
		row := b.do1(t, "HGET", b.rows(b.keys.leaf(req.ID)), req.ID)
		held[req.ID] = strings.TrimLeft(row, "0123456789") // its epoch aside
	}
	return held
}

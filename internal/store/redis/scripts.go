package redis

import (
	"context"
	"crypto/sha1" // what EVALSHA names scripts by
	"embed"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

//go:embed lua/*.lua
var sources embed.FS

// script is one Lua script with the libraries that it needs before it. Reads
// are scripts, too: they go to the master whatever the host's client does with
// commands that only read.
type script struct{ name, text, digest string }

// Scripts on the fleet's keys.
var (
	checkScript      = load("check", "lib_fleet")
	registerScript   = load("register", "lib_fleet")
	settleScript     = load("settle", "lib_fleet")
	beatScript       = load("beat", "lib_fleet")
	layoutScript     = load("layout", "lib_fleet")
	changeScript     = load("change", "lib_fleet")
	finishScript     = load("finish", "lib_fleet")
	liveScript       = load("live", "lib_fleet")
	sessionsScript   = load("sessions", "lib_fleet")
	statesScript     = load("states", "lib_fleet")
	clientScript     = load("client", "lib_fleet")
	drainScript      = load("drain", "lib_fleet")
	pushScript       = load("push", "lib_fleet")
	dropScript       = load("drop", "lib_fleet")
	lockScript       = load("lock", "lib_fleet")
	unlockScript     = load("unlock", "lib_fleet")
	namespacesScript = load("namespaces", "lib_fleet")
	forgetScript     = load("forget", "lib_fleet")
	recordScript     = load("record", "lib_fleet")
	eventsScript     = load("events", "lib_fleet")
	supersededScript = load("superseded", "lib_fleet")
	pingScript       = load("ping", "lib_fleet")
)

// Scripts on one bucket's keys.
var (
	joinScript       = load("join", "lib_bucket")
	hostScript       = load("host", "lib_bucket")
	applyScript      = load("apply", "lib_bucket")
	reclaimScript    = load("reclaim", "lib_bucket")
	retireScript     = load("retire", "lib_bucket")
	leaveScript      = load("leave", "lib_bucket")
	resolveScript    = loadAlone("resolve")
	lapsedScript     = load("lapsed", "lib_bucket")
	candidatesScript = load("candidates", "lib_bucket")
	lookupScript     = load("lookup", "lib_bucket")
	releaseScript    = load("release", "lib_bucket")
	rowsScript       = load("rows", "lib_bucket")
	takenScript      = load("taken", "lib_bucket")
	countsScript     = load("counts", "lib_bucket")
	quarantineScript = load("quarantine", "lib_bucket")
	vacantScript     = load("vacant", "lib_bucket")
	sweepScript      = load("sweep", "lib_bucket")
)

func load(name, library string) *script { return join(name, "lib", library, name) }

// loadAlone is for a script that brings all that it needs.
func loadAlone(name string) *script { return join(name, name) }

func join(name string, parts ...string) *script {
	var text strings.Builder
	for _, part := range parts {
		source, err := sources.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic(err) // the name is one of this file's
		}
		text.Write(source)
		text.WriteByte('\n')
	}
	sum := sha1.Sum([]byte(text.String())) // see above
	return &script{name: name, text: text.String(), digest: hex.EncodeToString(sum[:])}
}

// call is one run of a script. All keys are in one slot.
type call struct {
	script *script
	keys   []string
	args   []string
}

// with returns a call of the script on these keys; args may be strings and
// whole numbers.
func (s *script) with(keys []string, args ...any) call {
	c := call{script: s, keys: keys, args: make([]string, len(args))}
	for i, arg := range args {
		switch v := arg.(type) {
		case string:
			c.args[i] = v
		case int:
			c.args[i] = strconv.Itoa(v)
		case int64:
			c.args[i] = strconv.FormatInt(v, 10)
		case bool:
			c.args[i] = "0"
			if v {
				c.args[i] = "1"
			}
		case float64:
			c.args[i] = strconv.FormatFloat(v, 'g', -1, 64)
		default:
			panic("redis: an argument is neither text nor a number")
		}
	}
	return c
}

func (c call) evalsha(b rueidis.Builder) rueidis.Completed {
	return b.Evalsha().Sha1(c.script.digest).Numkeys(int64(len(c.keys))).Key(c.keys...).Arg(c.args...).Build()
}

func (c call) eval(b rueidis.Builder) rueidis.Completed {
	return b.Eval().Script(c.script.text).Numkeys(int64(len(c.keys))).Key(c.keys...).Arg(c.args...).Build()
}

// run runs one script. It returns when ctx ends, whatever the client does: a
// client that waits for a connection, or for room in its queue, may not notice.
func (d *directory) run(ctx context.Context, c call) *answer {
	return d.runAll(ctx, []call{c})[0]
}

// runAll runs scripts side by side, in no particular order, and returns their
// answers in the order of the calls.
func (d *directory) runAll(ctx context.Context, calls []call) []*answer {
	answers := make([]*answer, len(calls))
	if len(calls) == 0 {
		return answers
	}
	results := make(chan []rueidis.RedisResult, 1)
	go func() { results <- d.send(ctx, calls) }()
	select {
	case all := <-results:
		for i, res := range all {
			answers[i] = read(calls[i].script.name, res)
		}
	case <-ctx.Done():
		return allFailed(calls, ctx.Err())
	}
	return answers
}

func allFailed(calls []call, err error) []*answer {
	answers := make([]*answer, len(calls))
	for i, c := range calls {
		answers[i] = failed(c.script.name, err)
	}
	return answers
}

// send sends the calls. Servers that do not know a script, or not any more, have
// not run it: only then it is sent again, in full.
func (d *directory) send(ctx context.Context, calls []call) []rueidis.RedisResult {
	results := d.do(ctx, calls, call.evalsha)
	var unknown []call
	var at []int
	for i, res := range results {
		if err, ok := rueidis.IsRedisErr(res.Error()); ok && err.IsNoScript() {
			unknown, at = append(unknown, calls[i]), append(at, i)
		}
	}
	for i, res := range d.do(ctx, unknown, call.eval) {
		results[at[i]] = res
	}
	return results
}

func (d *directory) do(ctx context.Context, calls []call, command func(call, rueidis.Builder) rueidis.Completed) []rueidis.RedisResult {
	if len(calls) == 1 {
		return []rueidis.RedisResult{d.client.Do(ctx, command(calls[0], d.client.B()))}
	}
	commands := make([]rueidis.Completed, len(calls))
	for i, c := range calls {
		commands[i] = command(c, d.client.B())
	}
	return d.client.DoMulti(ctx, commands...)
}

package wire_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// registration returns the fields that every registration has, as JSON texts.
func registration() map[string]string {
	return map[string]string{
		"clientId": `"c1"`, "secret": `"` + hush + `"`, "namespaces": `["/counters"]`,
		"advertiseUrl": `"http://10.0.0.1:8000"`, "headroom": `12`, "draining": `false`,
		"challenge": `"q"`, "challengeValue": `"a"`,
	}
}

func heartbeat() map[string]string {
	return map[string]string{
		"sessionId": `"s1"`, "headroom": `12`, "draining": `false`, "challenge": `"q"`, "challengeValue": `"a"`,
	}
}

func release() map[string]string {
	return map[string]string{"sessionId": `"s1"`, "namespace": `"/counters"`, "id": `"alice"`}
}

// body writes fields, changed by changes; the value "-" leaves one out.
func body(fields map[string]string, changes ...string) []byte {
	for i := 0; i < len(changes); i += 2 {
		fields[changes[i]] = changes[i+1]
	}
	var out []string
	for name, value := range fields {
		if value != "-" {
			out = append(out, strconv.Quote(name)+": "+value)
		}
	}
	return []byte("{" + strings.Join(out, ", ") + "}")
}

type parser struct {
	fields   func() map[string]string
	optional []string
	parse    func([]byte) error
}

func parsers() map[string]parser {
	return map[string]parser{
		"register": {
			registration,
			[]string{"prevSessionId", "instances", "hostname", "env", "envs", "takeover", "epoch"},
			func(b []byte) error { _, err := wire.ParseRegister(b); return err },
		},
		"heartbeat": {heartbeat, []string{"acks"}, func(b []byte) error { _, err := wire.ParseHeartbeat(b); return err }},
		"release":   {release, []string{"epoch"}, func(b []byte) error { _, err := wire.ParseRelease(b); return err }},
		"deregister": {
			func() map[string]string { return map[string]string{"sessionId": `"s1"`} }, nil,
			func(b []byte) error { _, err := wire.ParseDeregister(b); return err },
		},
	}
}

// requireField requires an error that names the field.
func requireField(t *testing.T, err error, field string) {
	t.Helper()
	fault, ok := errors.AsType[*wire.FieldError](err)
	require.True(t, ok, "%v is not about a field", err)
	require.Equal(t, field, fault.Field)
	require.Contains(t, err.Error(), field)
	require.NotContains(t, err.Error(), hush)
}

func TestRequiredFieldThatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	for name, p := range parsers() {
		require.NoError(t, p.parse(body(p.fields())), name)
		for field := range p.fields() {
			requireField(t, p.parse(body(p.fields(), field, "-")), field)
		}
	}
}

func TestFieldNamesMatchExactly(t *testing.T) {
	t.Parallel()
	for _, p := range parsers() {
		for field, value := range p.fields() {
			for _, other := range []string{strings.ToUpper(field), strings.ToUpper(field[:1]) + field[1:], field + " "} {
				requireField(t, p.parse(body(p.fields(), field, "-", other, value)), field)
			}
		}
		for _, field := range p.optional {
			require.NoError(t, p.parse(body(p.fields(), strings.ToUpper(field), `{"wrong": [null]}`)), field)
		}
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	t.Parallel()
	for name, p := range parsers() {
		require.NoError(t, p.parse(body(p.fields(), "zzz", `{"a": [1, null]}`, "", `null`, "Secret", `7`)), name)
	}
}

func TestWrongTypeIsAFaultThatNamesTheField(t *testing.T) {
	t.Parallel()
	kinds := map[string]string{
		"text": `"text"`, "number": `1`, "fraction": `1.5`, "true": `true`, "list": `["x"]`, "object": `{"k": "v"}`, "null": `null`,
	}
	takes := map[string][]string{
		"headroom": {"number", "fraction"}, "draining": {"true"}, "epoch": {"number"}, "namespaces": {"list"}, "acks": {"list"},
		"instances": {}, "envs": {"object"},
	}
	for name, p := range parsers() {
		for _, field := range append(p.optional, keys(p.fields())...) {
			wrong := maps.Clone(kinds)
			for _, right := range takes[field] {
				delete(wrong, right)
			}
			if takes[field] == nil || name == "release" {
				delete(wrong, "text")
			}
			if field == "epoch" && name == "release" {
				wrong["number"] = `1`
			}
			for kind, value := range wrong {
				// hostname, so that env and its like are not faults for its lack
				err := p.parse(body(p.fields(), "hostname", `"h"`, field, value))
				require.Error(t, err, "%s: %s as %s", name, field, kind)
				require.Contains(t, err.Error(), field, kind)
			}
		}
	}
}

func keys(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

func TestEmptyAndOverlongTextsAreRefused(t *testing.T) {
	t.Parallel()
	long := `"` + strings.Repeat("x", 2049) + `"`
	for _, p := range parsers() {
		for field, value := range p.fields() {
			if value[0] == '"' {
				requireField(t, p.parse(body(p.fields(), field, `""`)), field)
				requireField(t, p.parse(body(p.fields(), field, long)), field)
			}
		}
	}
}

func TestBodyThatIsNoObjectIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "null", "1", `"` + hush + `"`, "true", "{", "{}}", `{"a":1,}`, "{'a':1}", `{"a":1} {"b":2}`, "\xef\xbb\xbf{}",
		`{"secret": "` + hush + `" "`, "{\"secret\": \"" + hush + "\xff\"}", strings.Repeat(`{"a":`, 20_000),
	} {
		for name, p := range parsers() {
			err := p.parse([]byte(text))
			require.Error(t, err, "%s: %q", name, text)
			require.NotContains(t, err.Error(), hush)
			require.NotContains(t, err.Error(), "Go ")
		}
	}
	for _, text := range []string{"[]", "null", "1", `"x"`} {
		_, err := wire.ParseRegister([]byte(text))
		requireField(t, err, "(body)")
	}
}

// Otherwise a decoder makes them equal: "\xff" and "\xfe" both become U+FFFD.
func TestTextThatIsNotUTF8IsRefused(t *testing.T) {
	t.Parallel()
	for name, p := range parsers() {
		require.Error(t, p.parse(body(p.fields(), "sessionId", "\"a\xff\"", "clientId", "\"a\xfe\"")), name)
	}
}

func TestHeadroomIsAFiniteNumberOfAtLeastZero(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{
		`0`: 0, `-0`: 0, `-0.0`: 0, `1.5`: 1.5, `1e18`: 1e18, `1E3`: 1000, `5e-324`: 5e-324, `1e-400`: 0, `1.7976931348623157e308`: 1.7976931348623157e308,
	} {
		b, err := wire.ParseHeartbeat(body(heartbeat(), "headroom", text))
		require.NoError(t, err, text)
		require.Equal(t, strconv.FormatFloat(want, 'g', -1, 64), strconv.FormatFloat(b.Headroom, 'g', -1, 64), text)
		r, err := wire.ParseRegister(body(registration(), "headroom", text))
		require.NoError(t, err, text)
		require.Equal(t, b.Headroom, r.Headroom)
	}
	for _, text := range []string{`-1`, `-0.001`, `-5e-324`, `1e400`, `-1e400`, `1e99999999`, `"12"`, `null`, `[1]`, `true`} {
		_, err := wire.ParseHeartbeat(body(heartbeat(), "headroom", text))
		requireField(t, err, "headroom")
		_, err = wire.ParseRegister(body(registration(), "headroom", text))
		requireField(t, err, "headroom")
	}
	for _, text := range []string{`NaN`, `Infinity`, `0x10`, `+1`, `01`, `1_000`, `.5`} { // no JSON at all
		_, err := wire.ParseHeartbeat(body(heartbeat(), "headroom", text))
		require.Error(t, err, text)
	}
}

func TestRegistrationIsReadWhole(t *testing.T) {
	t.Parallel()
	r, err := wire.ParseRegister(body(registration(),
		"namespaces", `["/b", "/a", "/b"]`, "prevSessionId", `"s0"`, "instances", `{"/a": ["x", "y z"], "/zzz": []}`,
		"hostname", `"app.example"`, "env", `"blue"`, "envs", `{"/a": "green"}`, "takeover", `"wind_down"`, "epoch", `7`))
	require.NoError(t, err)
	require.Equal(t, hush, r.Secret.Reveal())
	r.Secret = wire.Secret{}
	require.Equal(t, &wire.Register{
		ClientID: "c1", Namespaces: []string{"/a", "/b"}, AdvertiseURL: "http://10.0.0.1:8000", Headroom: 12,
		Challenge: "q", ChallengeValue: wire.NewSecret("a"), PrevSessionID: "s0",
		Instances: map[string][]string{"/a": {"x", "y z"}, "/zzz": {}},
		Hostname:  "app.example", Env: "blue", Envs: map[string]string{"/a": "green"}, Takeover: "wind_down", Epoch: 7,
	}, r)
}

func TestNamespacesAreCheckedAndNamed(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		`[]`: "namespaces", `["/a", "b"]`: "namespaces[1]", `["/a", null]`: "namespaces[1]", `["/a", 1]`: "namespaces",
		`["/registry"]`: "namespaces[0]", `["/b", "/a", "/ "]`: "namespaces[2]",
		`["/a"` + strings.Repeat(`, "/a"`, 1000) + `]`: "namespaces", // each costs the store a step
	} {
		_, err := wire.ParseRegister(body(registration(), "namespaces", text))
		requireField(t, err, field)
	}
}

// encoding/json decodes null into a string or a list without an error.
func TestNullInsideAListIsAWrongType(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"instances", `{"/a": ["x", null]}`, `instances["/a"][1]`}, {"instances", `{"/a": null}`, `instances["/a"]`},
		{"instances", `{"/a": ["x", 1]}`, `instances`}, {"envs", `{"/a": null}`, `envs["/a"]`},
	} {
		_, err := wire.ParseRegister(body(registration(), "hostname", `"h"`, c[0], c[1]))
		requireField(t, err, c[2])
	}
	_, err := wire.ParseHeartbeat(body(heartbeat(), "acks", `["m1", null]`))
	requireField(t, err, "acks[1]")
}

func TestWorkerEpochIsAnIntegerOfAtLeastZero(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{`0`: 0, `1`: 1, `9223372036854775807`: 9223372036854775807} {
		r, err := wire.ParseRegister(body(registration(), "epoch", text))
		require.NoError(t, err)
		require.Equal(t, want, r.Epoch)
	}
	for _, text := range []string{`-1`, `1.0`, `1e2`, `"1"`, `9223372036854775808`, `true`, `null`} {
		_, err := wire.ParseRegister(body(registration(), "epoch", text))
		requireField(t, err, "epoch")
	}
}

func TestDeploymentFieldsNeedAHostname(t *testing.T) {
	t.Parallel()
	for field, value := range map[string]string{"env": `"blue"`, "envs": `{"/a": "blue"}`, "takeover": `"deny"`} {
		_, err := wire.ParseRegister(body(registration(), field, value))
		requireField(t, err, field)
		_, err = wire.ParseRegister(body(registration(), field, value, "hostname", `"h"`))
		require.NoError(t, err)
	}
	_, err := wire.ParseRegister(body(registration(), "hostname", `"h"`, "takeover", `"steal"`))
	requireField(t, err, "takeover")
}

func TestHundredThousandInstancesAreRead(t *testing.T) {
	t.Parallel()
	const n = 100_000
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("chat-thread-%08d-with-a-long-name", i)
	}
	text, err := json.Marshal(map[string][]string{"/counters": ids})
	require.NoError(t, err)
	r, err := wire.ParseRegister(body(registration(), "instances", string(text)))
	require.NoError(t, err)
	require.Equal(t, ids, r.Instances["/counters"])

	var list []string
	for _, id := range ids {
		list = append(list, `{"sessionId":"s","namespace":"/counters","id":"`+id+`"}`)
	}
	releases, err := wire.ParseRelease([]byte("[" + strings.Join(list, ",") + "]"))
	require.NoError(t, err)
	require.Len(t, releases, n)
	require.Equal(t, wire.Release{SessionID: "s", Namespace: "/counters", ID: ids[n-1]}, releases[n-1])
}

func TestReleaseIsOneOrAList(t *testing.T) {
	t.Parallel()
	one := wire.Release{SessionID: "s1", Namespace: "/counters", ID: "alice"}
	got, err := wire.ParseRelease(body(release()))
	require.NoError(t, err)
	require.Equal(t, []wire.Release{one}, got)
	with := one
	with.Epoch = 1700000000000000
	text := " \r\n\t[" + string(body(release())) + "," + string(body(release(), "epoch", `"1700000000000000"`)) + "] "
	got, err = wire.ParseRelease([]byte(text))
	require.NoError(t, err)
	require.Equal(t, []wire.Release{one, with}, got)
	got, err = wire.ParseRelease([]byte("[]"))
	require.NoError(t, err)
	require.Empty(t, got)
	for _, text := range []string{"[null]", "[1]", "[[]]", "[" + string(body(release())) + "", `[{"sessionId": "s"}]`} {
		_, err = wire.ParseRelease([]byte(text))
		require.Error(t, err, text)
	}
	_, err = wire.ParseRelease([]byte("[" + string(body(release())) + `, {"sessionId": 1}]`))
	requireField(t, err, "sessionId")
	require.Contains(t, err.Error(), "entry 1")
}

func TestPlacementEpochIsDecimalDigits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"1": 1, "007": 7, "9007199254740991": 1<<53 - 1} {
		got, err := wire.ParseRelease(body(release(), "epoch", strconv.Quote(text)))
		require.NoError(t, err)
		require.Equal(t, want, got[0].Epoch)
	}
	// 0 stands for "any placement": it must not come from outside.
	for _, text := range []string{"0", "00", "-1", "+1", "1.0", "1e3", "0x1", "1_0", " 1", "9007199254740992", "١"} {
		_, err := wire.ParseRelease(body(release(), "epoch", strconv.Quote(text)))
		requireField(t, err, "epoch")
	}
}

func TestWhatAWorkerSendsIsReadBack(t *testing.T) {
	t.Parallel()
	r := &wire.Register{
		ClientID: "c", Secret: wire.NewSecret(hush), Namespaces: []string{"/a", "/b"}, AdvertiseURL: "http://h", Headroom: 1.5,
		Draining: true, Challenge: "q", ChallengeValue: wire.NewSecret("v"), PrevSessionID: "p", Instances: map[string][]string{"/a": {"x"}},
		Hostname: "h", Env: "e", Takeover: "deny", Envs: map[string]string{"/a": "f"}, Epoch: 3,
	}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	got, err := wire.ParseRegister(text)
	require.NoError(t, err)
	require.True(t, got.Secret.Equal(r.Secret))
	got.Secret = r.Secret
	require.Equal(t, r, got)

	h := &wire.Heartbeat{SessionID: "s", Headroom: 0, Draining: true, Challenge: "q", ChallengeValue: wire.NewSecret("v"), Acks: []string{"m"}}
	text, err = json.Marshal(h)
	require.NoError(t, err)
	gotBeat, err := wire.ParseHeartbeat(text)
	require.NoError(t, err)
	require.Equal(t, h, gotBeat)

	list := []wire.Release{{SessionID: "s", Namespace: "/a", ID: "x"}, {SessionID: "s", Namespace: "/a", ID: "y", Epoch: 1 << 52}}
	text, err = json.Marshal(list)
	require.NoError(t, err)
	gotList, err := wire.ParseRelease(text)
	require.NoError(t, err)
	require.Equal(t, list, gotList)
	require.Contains(t, string(text), `"epoch":"4503599627370496"`)

	text, err = json.Marshal(wire.Deregister{SessionID: "s"})
	require.NoError(t, err)
	gone, err := wire.ParseDeregister(text)
	require.NoError(t, err)
	require.Equal(t, "s", gone.SessionID)
}

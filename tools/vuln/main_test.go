package main

import (
	"strings"
	"testing"
)

const (
	config  = `{"config":{"go_version":"go1.26.8"}}`
	library = `{"osv":{"id":"GO-1","summary":"s"}} {"finding":{"osv":"GO-1","fixed_version":"v1.26.10","trace":[{"module":"stdlib","package":"net/http","function":"F"}]}}` +
		`{"finding":{"osv":"GO-2","fixed_version":"v1.26.9","trace":[{"module":"stdlib","package":"net/http"}]}}` +
		`{"finding":{"osv":"GO-4","fixed_version":"v1.99.0","trace":[{"module":"stdlib"}]}}`
	dependency = `{"finding":{"osv":"GO-3","trace":[{"module":"example.com/m"}]}}`
)

func TestFaultsOfDependenciesAndOfGoFail(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, accepted, out, err string }{
		{in: config},
		{in: config + library, out: "stdlib (called), mended in v1.26.10, FAILS: s", err: "2 faults"},
		{in: config + library, out: "stdlib (imported), mended in v1.26.9, FAILS", err: "2 faults"},
		{in: config + library, accepted: "GO-1 never\nGO-2 never\n", out: "accepted: never"},
		{in: config + dependency, out: "example.com/m (required), not mended yet, FAILS", err: "1 faults"},
		{in: config + dependency, accepted: "# c\nGO-3 never called\n", out: "accepted: never called"},
		{in: config, accepted: "GO-3 never called\n", err: "[GO-3]"},
		{in: "", err: "did not run"},
		{in: config + "{", err: "read what"},
	} {
		var out strings.Builder
		err := judge(strings.NewReader(c.in), &out, c.accepted)
		if !strings.Contains(out.String(), c.out) {
			t.Errorf("%q is not in %q", c.out, out.String())
		}
		if strings.Contains(out.String(), "1.99") {
			t.Errorf("a package that nothing uses is told: %q", out.String())
		}
		if (c.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v is not %q", err, c.err)
		}
	}
}

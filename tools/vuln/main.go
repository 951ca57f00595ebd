// Command vuln judges what govulncheck has found: see .ci/vuln.
//
// It reads govulncheck's JSON from standard input. A fault fails with exit status
// 1, in whatever a package of this module imports or only requires and in what it
// uses of the standard library, unless the file "accepted" names it with a reason.
// So does a line of that file which is good for nothing any more.
package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// accepted has a line for each fault that is known and lived with: its name,
// a space, and why.
//
//go:embed accepted
var accepted string

func main() {
	if err := judge(os.Stdin, os.Stdout, accepted); err != nil {
		fmt.Fprintln(os.Stderr, "vuln:", err)
		os.Exit(1)
	}
}

// message is one of govulncheck's, as far as it counts here.
type message struct {
	Config *struct {
		GoVersion string `json:"go_version"`
	} `json:"config"`
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string `json:"osv"`
		FixedVersion string `json:"fixed_version"`
		Trace        []struct {
			Module   string `json:"module"`
			Package  string `json:"package"`
			Function string `json:"function"`
		} `json:"trace"`
	} `json:"finding"`
}

// fault is what is told of one name in the database.
type fault struct {
	module, fixed string
	level         int // 2: it is called; 1: its package is imported; 0: its module is required
}

var levels = []string{"required", "imported", "called"}

const standard = "stdlib"

// judge reads messages, writes a line for each fault, and returns an error if
// one of them counts.
func judge(in io.Reader, out io.Writer, accepted string) error {
	faults, summaries := map[string]fault{}, map[string]string{}
	configured := false
	for dec := json.NewDecoder(bufio.NewReader(in)); ; {
		var m message
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read what govulncheck says: %w", err)
		}
		if m.Config != nil {
			configured = true
			fmt.Fprintf(out, "with %s:\n", m.Config.GoVersion)
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if f := m.Finding; f != nil && len(f.Trace) > 0 {
			level := 0
			switch {
			case f.Trace[0].Function != "":
				level = 2
			case f.Trace[0].Package != "":
				level = 1
			}
			level = max(level, faults[f.OSV].level)
			faults[f.OSV] = fault{f.Trace[0].Module, f.FixedVersion, level}
		}
	}
	if !configured {
		return errors.New("govulncheck has said nothing: it did not run")
	}
	known := readAccepted(accepted)
	bad := 0
	for _, id := range slices.Sorted(maps.Keys(faults)) {
		f := faults[id]
		fixed := "not mended yet"
		if f.fixed != "" {
			fixed = "mended in " + f.fixed
		}
		why, ok := known[id]
		delete(known, id)
		note := ""
		switch {
		case ok:
			note = ", accepted: " + why
		case f.module == standard && f.level == 0:
			continue // a package that nothing here uses
		default:
			bad++
			note = ", FAILS"
		}
		fmt.Fprintf(out, "%s %s (%s), %s%s: %s\n", id, f.module, levels[f.level], fixed, note, summaries[id])
	}
	if len(known) > 0 {
		return fmt.Errorf("tools/vuln/accepted names what is not found any more: %v", slices.Sorted(maps.Keys(known)))
	}
	if bad > 0 {
		return fmt.Errorf("%d faults: update what has them (Go itself in the Dockerfile), or say in tools/vuln/accepted why they do no harm", bad)
	}
	return nil
}

func readAccepted(text string) map[string]string {
	known := map[string]string{}
	for line := range strings.Lines(text) {
		if id, why, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			known[id] = why
		}
	}
	return known
}

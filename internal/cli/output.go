package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// clean replaces what a terminal could take for a command: texts of workers are
// shown, too.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}

// table writes rows under a head, in columns.
func (c *call) table(head string, rows [][]string) error {
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, strings.ReplaceAll(head, " ", "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = clean(cell)
			if cell == "" {
				cells[i] = "-"
			}
		}
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// print writes lines of text.
func (c *call) print(format string, args ...any) error {
	_, err := fmt.Fprintln(c.out, clean(fmt.Sprintf(format, args...)))
	return err
}

// raw writes JSON, as it came.
func (c *call) raw(text json.RawMessage) error {
	_, err := fmt.Fprintln(c.out, strings.TrimSpace(string(text)))
	return err
}

// encode writes a value as JSON in one line.
func (c *call) encode(value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return c.raw(text)
}

func when(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05Z") }

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// hosted names a namespace under its host name.
func hosted(hostname, namespace string) string { return hostname + namespace }

// optionalDuration is a flag that may not be there.
type optionalDuration struct {
	set bool
	d   time.Duration
}

func (o *optionalDuration) String() string {
	if !o.set {
		return ""
	}
	return o.d.String()
}

// Set reads a flag's text.
func (o *optionalDuration) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return fmt.Errorf("must be a time such as 30s or 5m")
	}
	o.set, o.d = true, d
	return nil
}

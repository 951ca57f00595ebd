package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// kind is one thing that is measured.
type kind struct {
	name string
	// against is the kind that this one's rate is compared with, nil for a
	// yardstick.
	against *kind
	// atLeast is the ratio that is wanted, 0 for none.
	atLeast float64
	round   func(context.Context) (sample, error)

	samples []sample
}

// sample is what one round measured.
type sample struct {
	rate float64 // calls a second
	// cpu is calls a second of processor time of the server that is measured:
	// what the rate would be if nothing else ran on the machine. 0 if it was not
	// measured.
	cpu float64
}

func rateOf(s sample) float64 { return s.rate }
func cpuOf(s sample) float64  { return s.cpu }

func (k *kind) all(of func(sample) float64) []float64 {
	all := make([]float64, len(k.samples))
	for i, s := range k.samples {
		all[i] = of(s)
	}
	return all
}

func (k *kind) median(of func(sample) float64) float64 {
	sorted := slices.Sorted(slices.Values(k.all(of)))
	return sorted[len(sorted)/2]
}

// ratio returns how the medians compare, with the lowest and the highest ratio
// of one round.
func (k *kind) ratio(of func(sample) float64) string {
	if k.against == nil || k.median(of) == 0 {
		return ""
	}
	ratios := k.all(of)
	for i, one := range k.against.all(of) {
		ratios[i] /= one
	}
	return fmt.Sprintf("%.2f (%.2f-%.2f)", k.median(of)/k.against.median(of), slices.Min(ratios), slices.Max(ratios))
}

// takeTurns measures one round of every kind, and then the next. What disturbs
// the machine for a while thus disturbs all kinds.
func takeTurns(ctx context.Context, rounds int, kinds []*kind) error {
	for range rounds {
		for _, k := range kinds {
			if err := ctx.Err(); err != nil {
				return err
			}
			one, err := k.round(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			k.samples = append(k.samples, one)
		}
	}
	return nil
}

// report prints a table of the medians and of their ratios.
func report(w io.Writer, kinds []*kind) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "kind\tcalls/s\tby CPU\tof\twanted\tratio\tratio by CPU")
	for _, k := range kinds {
		of, wanted := "", ""
		if k.against != nil {
			of = k.against.name
		}
		if k.atLeast > 0 {
			wanted = fmt.Sprintf("%.2f", k.atLeast)
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%s\t%s\t%s\t%s\n", k.name, k.median(rateOf), k.median(cpuOf), of, wanted,
			k.ratio(rateOf), k.ratio(cpuOf))
	}
	return t.Flush()
}

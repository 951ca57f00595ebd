package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// window is how many bytes of a secret in a row are a leak. Shorter secrets are
// not looked for: in a test a short one is a word, found anywhere. It is less
// than half of what this module mints.
const window = 16

// needles are the windows that are looked for, and what each is from.
type needles struct {
	from  map[[window]byte]string
	sums  map[uint64]struct{} // of all windows
	total int
	short int
}

// add has a secret looked for as it is and as printers and encoders would show
// it: its first bytes and its last ones.
func (n *needles) add(secret, from string) {
	// Only the signature of a token is secret: what it says goes to a worker
	// and may be known, and every attestation begins alike.
	if parts := strings.Split(secret, "."); len(parts) == 3 {
		secret = parts[2]
	}
	if len(secret) < window || !telling(secret) {
		n.short++
		return
	}
	n.total++
	raw := []byte(secret)
	forms := [][]byte{raw, []byte(hex.EncodeToString(raw)), bytes.ToUpper([]byte(hex.EncodeToString(raw)))}
	for skip := range 3 { // wherever it begins in what was encoded
		text := base64.RawStdEncoding.EncodeToString(raw[skip:])
		forms = append(forms, []byte(text[:len(text)-1]))
	}
	decimal := strings.Trim(fmt.Sprint(raw), "[]")
	forms = append(forms, []byte(decimal))
	for _, form := range forms {
		if len(form) < window {
			continue
		}
		n.look(form[:window], from)
		n.look(form[len(form)-window:], from)
	}
}

// telling reports whether a text has more than a few different bytes. Long rows
// of one letter, which tests send to be refused, may be anything.
func telling(text string) bool {
	seen := map[byte]bool{}
	for i := range len(text) {
		seen[text[i]] = true
	}
	return len(seen) >= 6
}

func (n *needles) look(w []byte, from string) {
	n.from[[window]byte(w)] = from
	n.sums[sum(w)] = struct{}{}
}

const base = 1_000_003

func sum(w []byte) (s uint64) {
	for _, c := range w {
		s = s*base + uint64(c)
	}
	return s
}

// leading is base to the power of window-1.
var leading = func() uint64 {
	p := uint64(1)
	for range window - 1 {
		p *= base
	}
	return p
}()

// find calls found for each secret in the text, with where it begins. It rolls
// a sum over the text, so that the time does not depend on how many there are.
func (n *needles) find(text []byte, found func(at int, from string)) {
	if len(text) < window {
		return
	}
	s := sum(text[:window])
	for at := 0; ; at++ {
		if _, ok := n.sums[s]; ok {
			if from, ok := n.from[[window]byte(text[at:at+window])]; ok {
				found(at, from)
			}
		}
		if at+window == len(text) {
			return
		}
		s = (s-uint64(text[at])*leading)*base + uint64(text[at+window])
	}
}

// maxTold bounds how many leaks are told.
const maxTold = 50

// scan looks for every secret of DIR/secrets in all other files.
func scan(dir string, out io.Writer) error {
	n := &needles{from: map[[window]byte]string{}, sums: map[uint64]struct{}{}}
	if err := each(filepath.Join(dir, "secrets"), func(path string, text []byte) error { return n.read(path, text) }); err != nil {
		return err
	}
	if n.total == 0 {
		return errors.New("no process has told a secret: nothing was checked")
	}
	leaks, size := 0, 0
	for _, kind := range kinds[1:] {
		err := each(filepath.Join(dir, kind), func(path string, text []byte) error {
			size += len(text)
			lastLine := -1
			n.find(text, func(at int, from string) {
				line := bytes.LastIndexByte(text[:at], '\n') + 1
				if line == lastLine {
					return
				}
				if lastLine = line; leaks < maxTold {
					tell(out, n, path, text, line, from)
				}
				leaks++
			})
			return nil
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "looked for %d secrets in %d bytes; %d were too short or simple for that\n", n.total, size, n.short)
	if leaks > 0 {
		return fmt.Errorf("%d lines show a secret", leaks)
	}
	return nil
}

func (n *needles) read(path string, text []byte) error {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		secret, err := strconv.Unquote(lines.Text())
		if err != nil {
			continue // the process was killed as it wrote
		}
		n.add(secret, filepath.Base(path))
	}
	return lines.Err()
}

// tell shows the line with the secrets in it blacked out.
func tell(out io.Writer, n *needles, path string, text []byte, line int, from string) {
	end := len(text)
	if at := bytes.IndexByte(text[line:], '\n'); at >= 0 {
		end = line + at
	}
	shown := bytes.Clone(text[line:min(end, line+2000)])
	hide := bytes.Clone(shown)
	n.find(shown, func(at int, _ string) { copy(hide[at:], bytes.Repeat([]byte("#"), window)) })
	fmt.Fprintf(out, "%s shows a secret of %s:\n\t%s\n", path, from, hide)
}

// each reads every file below a directory.
func each(dir string, do func(path string, text []byte) error) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return do(path, text)
	})
}

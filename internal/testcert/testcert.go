// Package testcert makes certificates for tests: an authority that nobody else
// trusts, and what it signs.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/netip"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority of its own for a test, which fails if that
// does not work.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t}
	template := a.template("authority " + rand.Text())
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, key := a.sign(template)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("read a certificate: %v", err)
	}
	a.cert, a.key = cert, key
	return a
}

// Pool holds the authority's own certificate: what to trust.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Issue returns a certificate for servers and clients that is good for an hour
// and for the hosts, which are names or addresses.
func (a *Authority) Issue(hosts ...string) tls.Certificate {
	a.t.Helper()
	return a.issue(time.Now(), hosts)
}

// IssueExpired is Issue for a time that is over.
func (a *Authority) IssueExpired(hosts ...string) tls.Certificate {
	a.t.Helper()
	return a.issue(time.Now().Add(-24*time.Hour), hosts)
}

func (a *Authority) issue(at time.Time, hosts []string) tls.Certificate {
	a.t.Helper()
	template := a.template("leaf")
	template.NotBefore, template.NotAfter = at.Add(-time.Hour), at.Add(time.Hour)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, host := range hosts {
		if addr, err := netip.ParseAddr(host); err == nil {
			template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, key := a.sign(template)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *Authority) template(name string) *x509.Certificate {
	a.t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.t.Fatalf("make a serial number: %v", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

// sign makes a key and its certificate, which signs itself while there is no
// authority yet.
func (a *Authority) sign(template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatalf("make a key: %v", err)
	}
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		a.t.Fatalf("sign a certificate: %v", err)
	}
	return der, key
}

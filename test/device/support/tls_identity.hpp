// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/context.hpp>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace test {

namespace asio = boost::asio;

template <auto Free>
struct freed_by {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};

/// A key and a self-signed certificate.
struct identity {
  identity() {
    const std::unique_ptr<EVP_PKEY, freed_by<EVP_PKEY_free>> k(
        EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
    const std::unique_ptr<X509, freed_by<X509_free>> x(X509_new());
    X509_set_version(x.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(x.get()), -60);
    X509_gmtime_adj(X509_getm_notAfter(x.get()), 3600);
    X509_set_pubkey(x.get(), k.get());
    X509_NAME* const name = X509_get_subject_name(x.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(x.get(), name);
    X509_sign(x.get(), k.get(), EVP_sha256());
    const std::unique_ptr<BIO, freed_by<BIO_free>> out(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(out.get(), x.get());
    certificate = take(out.get());
    PEM_write_bio_PrivateKey(out.get(), k.get(), nullptr, nullptr, 0, nullptr, nullptr);
    key = take(out.get());
  }

  static std::string take(BIO* b) {
    std::string s(BIO_ctrl_pending(b), ' ');
    BIO_read(b, s.data(), static_cast<int>(s.size()));
    return s;
  }

  std::string certificate, key;
};

/// A context that presents `mine` and requires `theirs`.
inline asio::ssl::context context_of(const identity& mine, const identity& theirs) {
  asio::ssl::context c(asio::ssl::context::tls);
  c.use_certificate(asio::buffer(mine.certificate), asio::ssl::context::pem);
  c.use_private_key(asio::buffer(mine.key), asio::ssl::context::pem);
  c.add_certificate_authority(asio::buffer(theirs.certificate));
  c.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
  return c;
}

} // namespace test
